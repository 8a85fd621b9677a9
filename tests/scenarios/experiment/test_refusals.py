"""What an experiment refuses before anything is run: its words, and the message that names key, value and choice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.experiment import compare, sweep
from scenarios.experiment.grid import grid_of
from scenarios.experiment.sweep_file import requested

PLANS: dict[str, Callable[[Sequence[str]], object]] = {
    "sweep": lambda words: sweep.plan(grid_of("digits", words)),
    "2 seeds": lambda words: sweep.plan(grid_of("digits", words), 2),
    "zip": lambda words: sweep.plan(grid_of("digits", words, zipped=True)),
    "targets": lambda words: sweep.plan(grid_of("digits", words), targets=[1.5]),
    "baseline": lambda words: sweep.plan(grid_of("digits", words), 2).with_baseline("fedavg lr=0.2"),
    "compare": lambda words: compare.plan(grid_of("digits", words)),
    "judged": lambda words: sweep.plan(grid_of("digits", words), judge="validation"),
    "judge": lambda words: sweep.plan(grid_of("digits", ["train.lr=0.1,1"]), judge=words[0]),
    "at": lambda words: sweep.plan(grid_of("digits", ["train.lr=0.1,1"]), at=words),
}
UNKNOWN = "unknown key method_options.mo: none of fedavg, fedprox has it; did you mean 'method_options.mu'?"
LINE, SAME = "command line: ", "method=fedprox and method=fedavg + fedprox are the same runs; name each value once"
LISTED = f"{LINE}train.lr: write values separated by commas, for example train.lr=0.05,0.1"
REFUSALS = (
    ("sweep train.lr=0.1,,0.2", LISTED),
    ("sweep train.lr=0.1,0.10", f"{LINE}train.lr = 0.1: is named twice; name each value once"),
    ("sweep train.lr=0.1,1 train.lr=2", f"{LINE}train.lr: is named twice; write all its values as one list, train.lr="),
    ("sweep train.lr", "'train.lr': an override reads KEY=VALUE, for example train.lr=0.05; values of a list are sepa"),
    ("sweep train.lr=1 train.lr=2", f"{LINE}train.lr: is given twice; a key has one value"),
    ("sweep train.lr=0.1,-1", f"{LINE}train.lr = -1"),
    ("sweep train.learning_rat=1,2", f"{LINE}unknown key train.learning_rat"),
    ("sweep method=fedavg,fedprox method_options.mo=0,1", f"{LINE}{UNKNOWN}"),
    ("sweep method=fedavg,fedbrr", f"{LINE}method: no method 'fedbrr'; did you mean 'fedbr'"),
    ("sweep 'method=fedprox,fedavg + fedprox'", SAME),
    (
        "compare train.lr=0.1,1",
        f"{LINE}train.lr: a comparison varies the method alone; fedbr sweep takes several value",
    ),
    (
        "zip train.lr=0.1,1 train.momentum=0,0.5,0.9",
        "--zip: lists side by side must be equally long: train.lr has 2, t",
    ),
    ("zip train.lr=0.1,0.2 seed=1,2", "--zip: seed = 1, 2: every cell has all"),
    ("'2 seeds' seed=3,11", "seed = 3, 11: names the seeds; leave out --seeds and --seed"),
    ("sweep seed=1,-1", "seed = 1, -1: must be integers from 0 on"),
    ("targets method=fedavg", "--target 1.5: must be an accuracy above 0 and at most 1, for example 0.9"),
    ("baseline train.lr=0.05,0.1", "--baseline 'fedavg lr=0.2': no row of this sweep is called so, "),
    ("judge tests", "--judge 'tests': no examples are called so, did you mean 'test'?"),
    (
        "judged train.lr=0.1,1",
        "data.validation = 0: settings are chosen on validation examples; set data.validation=0.2",
    ),
    (
        "judged data.validation=0.2 eval.split=test train.lr=0.1,1",
        "--judge validation: evaluates clients' models on their validation examples alone; leave out eval.split",
    ),
    ("at bytes", "--at 'bytes': write an amount and its values, for example bytes=\"1 MB,2 MB\""),
    ("at 'byte=1 MB'", "--at: unknown amount 'byte', did you mean 'bytes'?"),
    ("at seconds=5", "--at: seconds: '5' is a duration without a unit: add one of us, ms, s, min, h, d"),
    ("at price=1", "--at: price: no run has any; choose fleet.price.gb, fleet.price.kwh or fleet.tiers"),
    (
        "at 'co2e_grams=1 g'",
        "--at: co2e_grams: no run has any; choose fleet.carbon.zone or fleet.carbon.grams_per_kwh",
    ),
    ("at 'wan_bytes=1 MB'", "--at: wan_bytes: no run has any; choose fleet.tiers"),
    ("at 'bytes=0 B'", "--at: bytes = '0 B': must be above 0"),
    ("at 'bytes=1 MB' 'bytes=2 MB'", "--at: bytes is named twice; write all its values as one list, --at bytes="),
)
FILES = (
    ("sead = 1", "unknown key sead, did you mean 'seeds'?"),
    ("seeds = 0", "seeds = 0: must be an integer above 0"),
    ("parallel = true", "parallel = true: must be an integer above 0"),
    ("targets = 0.9", "targets = 0.9: must be a list"),
    ('targets = ["a"]', 'targets = ["a"]: must be a list of scores, such as [0.9] or ["rmse=4"]'),
    ("rows = [1]", 'rows = [1]: must be a list of tables, such as [{ method = "fedavg" }]'),
    ("judge = 1", "judge = 1: must be text"),
    ("grid = 1", "grid = 1: must be a table"),
    ("[grid]\n[zip]", "grid, zip: name one of the two"),
    ("[grid]\ntrain.lr = 0.1", "train.lr = 0.1: must be a list; one value goes to [overrides]"),
    ("[grid]\ntrain.lr = [1, 1.0]", "train.lr = 1: is named twice; name each value once"),
)


@pytest.mark.parametrize(("line", "message"), REFUSALS)
def test_words_that_cannot_be_meant_are_refused(line: str, message: str) -> None:
    kind, *words = shlex.split(line)
    with pytest.raises(ScenarioError) as refused:
        PLANS[kind](words)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("text", "message"), FILES)
def test_mistakes_of_a_sweep_file_name_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'scenario = "digits"\n{text}\n')
    with pytest.raises(ScenarioError) as refused:
        requested(str(file), [])
    assert str(refused.value) == f"mine.toml: {message}"
