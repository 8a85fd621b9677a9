"""Work on a CPU recorded as the kernels that it calls, and replayed without what modules and autograd do in between.

A small model's step is some fifteen kernels of a microsecond or two each, and most of its time is bookkeeping. A replay
calls the same kernels in the same order, on the addresses of the recorded work, so that it has the same bits. It asks
of the work what a CUDA graph does: all that changes from one replay to the next is in tensors at fixed addresses, and
no result is read on the way. Kernels that draw random numbers draw new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

MOST_NBYTES = 16 << 20
"""Memory of the results that the tapes of a worker keep. Larger work gains little from a replay."""
_aten = torch.ops.aten
_IN_PLACE: dict[object, Callable[..., object]] = {_aten.add_.Tensor: Tensor.add_, _aten.copy_.default: Tensor.copy_}
"""Kernel -> the same by torch's Python function, whose call takes half as long"""
_INTO: dict[object, tuple[Callable[..., object], tuple[str, ...]]] = {
    _aten.add.Tensor: (torch.add, ("out",)),
    _aten.addmm.default: (torch.addmm, ("out",)),
    _aten.mm.default: (torch.mm, ("out",)),
    _aten.mul.Tensor: (torch.mul, ("out",)),
    _aten.sub.Tensor: (torch.sub, ("out",)),
    _aten.sum.dim_IntList: (torch.sum, ("out",)),
    _aten._log_softmax.default: (torch._log_softmax, ("out",)),
    _aten._log_softmax_backward_data.default: (_aten._log_softmax_backward_data.out, ("out",)),
    _aten.nll_loss_forward.default: (_aten.nll_loss_forward.output, ("output", "total_weight")),
    _aten.nll_loss_backward.default: (_aten.nll_loss_backward.grad_input, ("grad_input",)),
    _aten.threshold_backward.default: (_aten.threshold_backward.grad_input, ("grad_input",)),
}
"""Kernel -> its form that writes results to given tensors, and their names. Others' results are copied there: not all
kernels leave such tensors in their shape while they run (``mse_loss``)."""


class KernelTape:
    """A `edge.training.cuda_graphs.GraphBackend` whose first replay runs the work and records it."""

    def __init__(self, most_nbytes: int) -> None:
        """``most_nbytes``: of all results of kernels; the work is not recorded if they take more."""
        self._recorder = KernelRecorder(most_nbytes)
        self._calls: tuple[Callable[[], object], ...] = ()

    @property
    def nbytes(self) -> int | None:
        """Memory that the recorded results take; None: the work cannot be recorded, and each replay runs it."""
        return self._recorder.nbytes

    def capture(self, work: Callable[[], object]) -> None:
        """Keep the work without running it."""
        self._work: Callable[[], object] | None = work

    def replay(self) -> None:
        """Do the work once."""
        for call in self._calls:
            call()
        if self._work is None:
            return
        if self.nbytes is None:
            self._work()
            return
        with self._recorder:
            self._work()
        if self.nbytes is not None:
            self._calls, self._work = self._recorder.calls(), None


def kernel_tapes() -> Callable[[], KernelTape]:
    """A factory of a worker's tapes, which share `MOST_NBYTES`."""
    tapes: list[KernelTape] = []

    def tape() -> KernelTape:
        tapes[:] = [tape for tape in tapes if tape.nbytes is not None]
        tapes.append(KernelTape(MOST_NBYTES - sum(tape.nbytes or 0 for tape in tapes)))
        return tapes[-1]

    return tape


class KernelRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """While it is entered, kernels run as ever, and are recorded."""

    def __init__(self, most_nbytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes: int | None = 0
        """Of all results; None after more than ``most_nbytes``, or a result that is no tensor (``item``)."""
        self._most_nbytes = most_nbytes
        self._calls: list[tuple[Callable[[], object], int | None]] = []
        self._changed: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and to say so torch would import its compiler, which leaves a folder."""
        return False

    def calls(self) -> tuple[Callable[[], object], ...]:
        """What runs the kernels again, each with its results at the same addresses."""
        return tuple(call for call, constant in self._calls if constant is None or constant in self._changed)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a kernel."""
        result = op(*args, **(kwargs or {}))
        if self.nbytes is not None:
            self._record(op, *tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}, result)))
        return result

    def _record(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        results = list(result) if isinstance(result, tuple | list) else [result]
        given = {_storage(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        made = [value for value in results if isinstance(value, Tensor) and _storage(value) not in given]
        assert self.nbytes is not None
        self.nbytes += sum(value.nbytes for value in made)
        are_tensors = all(value is None or isinstance(value, Tensor) for value in results)
        if self.nbytes > self._most_nbytes or not are_tensors:
            self.nbytes = None
            self._calls.clear()
            return
        changes = op._schema.is_mutable
        if changes:
            self._changed |= given
        elif not made:
            return  # a view, which is still one
        if not made:
            call = partial(_IN_PLACE.get(op, op), *args, **kwargs)
        elif op in _INTO:
            into, names = _INTO[op]
            call = partial(into, *args, **kwargs, **dict(zip(names, made, strict=True)))
        else:
            call = partial(_run_and_copy, partial(op, *args, **kwargs), results)
        # The slope of the loss itself is always one, unless its tensor is used for something else.
        self._calls.append((call, _storage(made[0]) if op is _aten.ones_like.default else None))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _run_and_copy(call: Callable[[], Any], results: list[Tensor | None]) -> None:
    again = call()
    for old, new in zip(results, again if isinstance(again, tuple | list) else [again], strict=True):
        if old is not None:
            old.copy_(new)
