"""Where Python code is run: a script on stdin, without a main guard, and a notebook; and what is loaded there.

Workers are processes of their own.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fedbr

ROOT = Path(__file__).parents[2]
RUN = """
import fedbr
run = fedbr.run("digits", method="fedavg", out={out!r}, workers=1, train={{"local_steps": 1}}, **{{"rounds.max": 1}})
print(len(run.rounds), run.stopped_by)
"""


def test_every_name_is_there_and_no_other() -> None:
    for name in set(fedbr.__all__) - {"MLflow", "TensorBoard"}:  # which load much
        assert getattr(fedbr, name) is not None
    assert dir(fedbr) == sorted(fedbr.__all__)
    with pytest.raises(AttributeError, match="module 'fedbr' has no attribute 'train'"):
        getattr(fedbr, "train")  # noqa: B009


@pytest.mark.parametrize("name", ["TensorBoard", "MLflow"])
def test_a_missing_extra_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = name.lower()
    monkeypatch.delitem(vars(fedbr), name, raising=False)
    monkeypatch.delitem(sys.modules, f"scenarios.api.{extra}", raising=False)
    for module in [extra, *(known for known in sys.modules if known.startswith(f"{extra}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"fedbr.{name} needs {extra}: pip install 'fedbr-edge\[{extra}\]'"):
        getattr(fedbr, name)


def test_a_script_on_stdin_runs_without_a_main_guard_and_loads_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys, fedbr
print("scenarios" in sys.modules, "numpy" in sys.modules)
{RUN.format(out=str(tmp_path))}
print([name for name in ("torch", "matplotlib", "mlflow", "tensorboard", "IPython") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-"], input=code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("False False\n1 rounds\n[]\n", "", 0)


BAD = """class Bad(ClientUpdate):
    # Of no use here, but a line of the cell.
    def loss(self, net, x, y):
        k = 1

        return k + nothing_here
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_mistake_in_a_notebook_is_one_message_that_begins_with_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    v4: Any = import_module("nbformat.v4")  # untyped
    cells = [
        "import fedbr\nfrom edge.training.client_update import ClientUpdate",
        BAD,
        f"fedbr.run('digits', method=Bad, rounds={{'max': 1}}, workers=1, out={str(tmp_path)!r})",
        "fedbr.run('digits', methd='fedavg')",
    ]
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    failed, refused = (
        next(output["traceback"] for output in cell["outputs"] if output["output_type"] == "error")
        for cell in notebook["cells"][2:]
    )
    assert failed[0].startswith("RunFailed: cell 2, line 6: return k + nothing_here: client ")
    assert "/objects/" not in failed[0]
    assert refused == ["ScenarioError: unknown key methd, did you mean 'method'?"]
