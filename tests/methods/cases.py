"""Every method as it is neutral and as it is used: one table of settings, for `test_contract` and `tests/cuda`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coordinator.methods.compute import fedavg_compute
from coordinator.methods.registry import resolve
from coordinator.methods.spec import Costs
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.payload import MODEL
from tests.toy import DIGITS_CNN, Run, state_file

IID = PartitionConfig("iid")
BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3, momentum=0.5, weight_decay=1e-3, clip=1.0)
THOROUGH = TrainConfig(lr=0.1, batch=16, local_epochs=2, momentum=0.5, clip=10.0)


Played = Callable[..., Run]


# --- where a method is FedAvg -----------------------------------------------------------------------------------------


def everywhere(case: Case, once: Played) -> None:
    """With its neutral options it is FedAvg to the bit; without a teacher, also to the byte and the FLOP."""
    fedavg = case.play_fedavg(once)
    for options in ({}, *case.also_neutral):
        neutral = case.play_neutral(once, **options)
        assert np.array_equal(neutral.model, fedavg.model)
        if case.name in CHEAP_IF_NEUTRAL:
            assert neutral.rows(SENT) == fedavg.rows(SENT)
            assert neutral.rows("SELECT flops FROM visits") == fedavg.rows("SELECT flops FROM visits")


def in_the_first_round(case: Case, once: Played) -> None:
    """What it learns from one round changes the next ones only (SCAFFOLD)."""
    assert np.array_equal(case.play_neutral(once, rounds=1).model, case.play_fedavg(once, rounds=1).model)


def in_the_first_step(case: Case, once: Played) -> None:
    """Its terms are 0 where a visit of the first round starts (FedDyn)."""
    how = {"rounds": 1, "train": replace(BRIEF, local_steps=1)}
    neutral, fedavg = case.play_neutral(once, **how), case.play_fedavg(once, **how)
    replies = [run.workers.replies[0].payload[MODEL] for run in (neutral, fedavg)]
    assert {key: vector.version for key, vector in replies[0].items()} == {
        key: vector.version for key, vector in replies[1].items()
    }


def with_one_client(case: Case, once: Played) -> None:
    """The only client keeps the model that FedAvg's server would get (local)."""
    alone, fedavg = (play(once, clients=1, participants=1) for play in (case.play_neutral, case.play_fedavg))
    kept = client_state.read(state_file(alone.federation, 0))[MODEL]
    assert np.array_equal(np.concatenate([vector.data for vector in kept.values()]), fedavg.model)


def in_the_first_visit(case: Case, once: Played) -> None:
    """Each client's first visit is FedAvg's with the same examples held out; later ones train its own model."""
    validation = resolve(case.name).objective.evaluation.validation
    neutral, fedavg = case.play_neutral(once, rounds=1), case.play_fedavg(once, rounds=1, validation=validation)
    replies = [run.workers.replies[0].payload[MODEL] for run in (neutral, fedavg)]
    assert all(np.array_equal(replies[0][key].data, vector.data) for key, vector in replies[1].items())


def in_the_mean(case: Case, once: Played) -> None:
    """The first round's mean is FedAvg's, and is taken as by hand from m = 0 and v = tau² (FedAdagrad, FedADAM and
    FedYogi)."""
    lr, beta1, beta2, tau = 0.05, 0.0 if case.server == "fedadagrad" else 0.9, 0.99, 0.001
    assert case.server_real == {"lr": lr}
    first, fedavg = case.play_real(once, rounds=1), case.play_fedavg(once, rounds=1)
    change = (fedavg.model - fedavg.start).astype(np.float64)
    grows = change**2 > tau**2
    v = {
        "fedadagrad": tau**2 + change**2,
        "fedadam": beta2 * tau**2 + (1 - beta2) * change**2,
        "fedyogi": tau**2 + (1 - beta2) * np.where(grows, change**2, -(change**2)),
    }[case.server]
    stepped = fedavg.start + lr * (1 - beta1) * change / (np.sqrt(v) + tau)
    assert grows.any() and not grows.all()
    assert np.abs(first.model - stepped).max() < 1e-6


def on_the_wrapped_model(case: Case, once: Played) -> None:
    """It is FedAvg on the model that it makes (MOON), to the FLOP, and its clients keep nothing."""
    method = resolve(case.name)
    client = "edge.training.client_update:ClientUpdate"
    plain = replace(method.objective, client=client, client_state=None, costs=Costs(compute=fedavg_compute))
    fedavg = once(replace(method, objective=plain), train=BRIEF, **case.neutral)
    neutral = case.play_neutral(once)
    assert np.array_equal(neutral.model, fedavg.model)
    for rows in (SENT, "SELECT flops FROM visits"):
        assert neutral.rows(rows) == fedavg.rows(rows)
    assert not client_state.read(state_file(neutral.federation, 0))


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One method, as it is neutral and as it is used."""

    name: str
    neutral: dict[str, Any] = field(default_factory=dict)
    """Options that make it FedAvg, or as near to it as it can be."""
    real: dict[str, Any] = field(default_factory=dict)
    also_neutral: tuple[dict[str, Any], ...] = ()
    """Other options that do the same"""
    weights: str = "size"
    """How the FedAvg that it equals weighs replies."""
    is_fedavg: Callable[[Case, Played], None] = everywhere
    """Where it is FedAvg with its neutral options: one of the functions above, which assert it."""
    server: str = "plain"
    server_neutral: dict[str, Any] = field(default_factory=dict)
    server_real: dict[str, Any] = field(default_factory=dict)
    model: ModelConfig = DIGITS_CNN

    def __str__(self) -> str:
        return " ".join([self.name, *([] if self.server == "plain" else [self.server]), *self.real])

    @property
    def used(self) -> dict[str, Any]:
        """What a run takes to use it for real, beside its name."""
        return {"server": self.server, "server_options": self.server_real, "model": self.model, **self.real}

    def play_neutral(self, once: Played, **how: Any) -> Run:
        server = {"server": self.server, "server_options": self.server_neutral}
        return once(self.name, **{"train": BRIEF, "model": self.model, **server, **self.neutral, **how})

    def play_real(self, once: Played, **how: Any) -> Run:
        return once(self.name, **{"train": BRIEF, **self.used, **how})

    def play_fedavg(self, once: Played, **how: Any) -> Run:
        return once("fedavg", **{"train": BRIEF, "model": self.model, "weights": self.weights, **how})


NO_TERMS = {"lambda1": 0, "lambda2": 0}
AS_FEDAVG = {**NO_TERMS, "period": 0}
PARTS = {"rate": "client", "rates": (1.0, 0.5)}
ADAPTED_HEAD = {"kind": "lora", "rank": 4, "alpha": 4, "train": ("conv1", "conv2", "conv3")}
CASES = [
    Case("fedavg"),
    Case("fedprox", {"mu": 0}, {"mu": 0.1}),
    Case("fedmlb", NO_TERMS, also_neutral=({"pathways": []}, {"pathways": [], "order": "GL"})),
    Case("fedbr", AS_FEDAVG, weights="uniform"),
    Case("fedavg-kd", {"weight": 0}),
    Case("fedavg-fitnet", {"weight": 0}, also_neutral=({"layers": []},)),
    Case("fedntd", {"ce_weight": 1, "weight": 0}),
    Case("fedgkd", {"weight": 0}),
    # All make as many steps here, which is what makes it neutral.
    Case("fednova", {}, {"effective_steps": "steps"}),
    Case("fednova+fedprox", {"mu": 0}, {"mu": 0.1}),
    Case("ifca", {"models": 1}, also_neutral=({"shared": 2},)),
    Case("fedfomo", {"peers": 0}, is_fedavg=in_the_first_visit),
    Case("fedamp", {"lam": 0}, is_fedavg=in_the_first_visit),
    Case("pfedmb", {"branches": 1}, {"branches": 2, "branch_init": "variance_preserving"}),
    Case("moon", {"weight": 0}, {"weight": 0.1, "projection": 32}, is_fedavg=on_the_wrapped_model),
    Case("mixup", {"gamma": 0}),
    Case("gradaug", {"subnets": 0}, {"multiple": 2}, also_neutral=({"subnets": 2, "weight": 0},)),
    Case("fedalign", {"weight": 0, "clip": 0}, {"multiple": 2}),
    Case("heterofl", {}, {"submodel": PARTS, "mask": True}),
    Case("heterofl+fedprox", {"mu": 0}, {"submodel": PARTS, "mu": 0.1}),
    Case("fedrolex", {}, {"submodel": PARTS}),
    Case("fjord", {}, {"submodel": PARTS}, also_neutral=({"distil": 1},)),
    Case(
        "depthfl",
        {"exits": "none"},
        {"ramp": 2, "submodel": {"rate": "client", "rates": (1.0, 0.6, 0.3)}},
        weights="uniform",
    ),
    # Without adapters all vectors are whole, whatever the rate.
    Case("flexlora", {}, {"adapter": ADAPTED_HEAD, "submodel": PARTS}, also_neutral=({"submodel": PARTS},)),
    Case("flora", {}, {"adapter": ADAPTED_HEAD, "submodel": PARTS}, also_neutral=({"submodel": PARTS},)),
    Case("stochdepth", {"keep_last": 1}, {"keep_last": 0.5}, model=ModelConfig("tests.plugins.residual:ROW")),
    Case("calibrated", {"tau": 0}),
    Case("fedmlb+calibrated", {**NO_TERMS, "tau": 0}, {"form": "margin"}),
    Case("fedbr+calibrated", {**AS_FEDAVG, "tau": 0}, weights="uniform"),
    Case("local+fedprox", {"mu": 0}, {"mu": 0.1}, is_fedavg=with_one_client),
    Case("central", is_fedavg=with_one_client),
    Case("fedper+fedprox", {"layers": 0, "mu": 0}, {"layers": 2, "mu": 0.1}),
    # lam times outer_lr is 1 to the bit.
    Case(
        "pfedme",
        {"inner_steps": 1, "outer_lr": 1 / 15},
        {"inner_steps": 2, "lam": 2, "outer_lr": 0.4},
        weights="uniform",
    ),
    Case("fedmlb+fedprox", {**NO_TERMS, "mu": 0}, {"mu": 0.01}),
    Case("fedavg-kd+fedprox", {"weight": 0, "mu": 0}, {"mu": 0.01}),
    Case("fedbr+fedprox", {**AS_FEDAVG, "mu": 0}, {"mu": 0.01}, weights="uniform"),
    Case("scaffold", is_fedavg=in_the_first_round),
    Case("scaffold", {"lean": True}, {"lean": True}, is_fedavg=in_the_first_round),
    Case("fedmlb+scaffold", NO_TERMS, is_fedavg=in_the_first_round),
    Case("fedbr+scaffold", AS_FEDAVG, weights="uniform", is_fedavg=in_the_first_round),
    Case("feddyn", is_fedavg=in_the_first_step),
    Case("fedmlb+fedprox+feddyn", {**NO_TERMS, "mu": 0}, {"mu": 0.01}, is_fedavg=in_the_first_step),
    Case("fedavg", server="fedavgm", server_neutral={"momentum": 0}),
    Case("fedavg", server="fedadagrad", server_real={"lr": 0.05}, is_fedavg=in_the_mean),
    Case("fedavg", server="fedadam", server_real={"lr": 0.05}, is_fedavg=in_the_mean),
    Case("fedavg", server="fedyogi", server_real={"lr": 0.05}, is_fedavg=in_the_mean),
    Case(
        "fedbr+scaffold",
        AS_FEDAVG,
        weights="uniform",
        is_fedavg=in_the_first_round,
        server="fedavgm",
        server_neutral={"momentum": 0},
    ),
]
SENT = "SELECT round, client, direction, slot, key, nbytes FROM transfers"
CHEAP_IF_NEUTRAL = (
    *("fedprox", "fedper+fedprox", "pfedme", "fedavg-kd", "fedavg-fitnet", "fedntd", "fedgkd", "pfedmb", "mixup"),
    *("gradaug", "fedalign", "stochdepth"),
)
PLAIN_MESSAGES = (
    *("fedprox", "calibrated", "feddyn", "fedmlb", "fedavg-kd", "fedavg-fitnet", "fedntd", "pfedme", "mixup"),
    *("gradaug", "fedalign", "stochdepth"),
)
"""Methods whose messages are FedAvg's."""
KEEPING = ("fedbr", "scaffold", "feddyn", "local", "central", "fedper", "pfedme", "fedfomo", "fedamp", "pfedmb", "moon")
"""Parts of methods whose clients keep something."""
