"""From TOML and overrides to a resolved scenario, or to one message that names file, key and nearest valid choice."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.methods.fedavg import SPEC as FEDAVG
from coordinator.methods.spec import ModelEvaluation
from edge.protocol.options.fedbr import TUNED, FedBROptions
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.config.quantities import scenario_text
from scenarios.config.tables import value_at
from scenarios.config.toml_source import shipped
from scenarios.config.toml_writer import toml_text
from scenarios.run.builder import identity


def refusal(*overrides: str, name: str = "digits") -> str:
    with pytest.raises(ScenarioError) as caught:
        load(name, parse_all(overrides))
    return str(caught.value)


@pytest.mark.parametrize("name", shipped())
def test_every_scenario_that_ships_loads_and_its_resolved_form_says_the_same(name: str, tmp_path: Path) -> None:
    loaded = load(name)
    resolved = tmp_path / f"{name}.toml"
    resolved.write_text(scenario_text(loaded.scenario.model_dump()), encoding="utf-8")

    assert load(str(resolved)).scenario == loaded.scenario


def test_quantities_take_units_and_are_kept_in_si() -> None:
    loaded = load(
        "digits", parsed(['budget.bytes="50 GB"', "budget.virtual_seconds=15 min", "fleet.server.down=20 Mbit/s"])
    )

    assert (loaded.scenario.budget.bytes, loaded.scenario.budget.virtual_seconds) == (50_000_000_000, 900.0)
    assert loaded.scenario.fleet.server.down == 20e6
    assert load("digits", parsed(["fleet.server.down=inf"])).scenario.fleet.server.down == float("inf")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fleet.server.up=20", "fleet.server.up = 20: needs a unit, for example '20 Mbit/s'"),
        ("fleet.server={up=20e6}", "fleet.server.up = 20000000.0: needs a unit, for example '20 Mbit/s'"),
        ("fleet.rates=['1 Mbit/s',5]", "fleet.rates = ['1 Mbit/s', 5]: needs a unit, for example '5 Mbit/s'"),
        ("budget.bytes=5", "budget.bytes = 5: needs a unit, for example '5 MB'"),
        ("budget.client.joules=2.5", "budget.client.joules = 2.5: needs a unit, for example '2.5 J'"),
        ("rounds.deadline=5", "rounds.deadline = 5: needs a unit, for example '5 s'"),
    ],
)
def test_a_number_without_a_unit_is_refused_where_a_quantity_is_expected(
    override: str, message: str, tmp_path: Path
) -> None:
    assert refusal(override) == f"command line: {message}"
    mine = tmp_path / "mine.toml"
    mine.write_text(f"{override}\n")
    assert refusal(name=str(mine)) == f"mine.toml: {message}"


def test_a_run_folder_of_an_earlier_version_may_have_bare_numbers_but_overrides_of_it_may_not(tmp_path: Path) -> None:
    text = toml_text(load("digits", parsed(["rounds.deadline=5 s"])).scenario.model_dump())
    assert "deadline = 5.0\n" in text
    (tmp_path / "scenario.toml").write_text(text)
    assert "deadline = 5.0: needs a unit" in refusal(name=str(tmp_path / "scenario.toml"))
    (tmp_path / "ledger.sqlite").touch()

    assert load(str(tmp_path / "scenario.toml")).scenario.rounds.deadline == 5.0
    assert "needs a unit" in refusal("rounds.deadline=6", name=str(tmp_path / "scenario.toml"))


@pytest.mark.parametrize("written", ["0.9", '"90 %"', "90%", "90.0 %"])
def test_an_accuracy_may_be_written_in_percent(written: str) -> None:
    assert load("digits", parsed([f"stop.target_accuracy={written}"])).scenario.stop.target_accuracy == 0.9


def test_a_key_that_has_a_new_name_is_read_under_its_old_one_with_a_note(tmp_path: Path) -> None:
    today = load("campus", parsed(["fleet.gateways.count=2"]))
    resolved = scenario_text(today.scenario.model_dump())
    old = tmp_path / "campus.toml"
    old.write_text(resolved.replace("[fleet.gateways]", "[fleet.sites]"), encoding="utf-8")
    note = ("fleet.sites is now called fleet.gateways",)

    assert "[fleet.gateways]" in resolved
    assert today.notes == ()
    for loaded in (
        load("campus", parsed(["fleet.sites.count=2"])),
        load(str(old)),
        load(str(old), parsed(["fleet.gateways.count=2"])),
        load("campus", parsed(["fleet={sites={count=2,down='15 Mbit/s',up='15 Mbit/s'},devices={phone-mid=1}}"])),
    ):
        assert (loaded.notes, loaded.scenario.fleet.gateways) == (note, today.scenario.fleet.gateways)
    # Runs of both names have one hash chain, so that old ones can be gone on with.
    assert identity(load(str(old))) == identity(today)
    assert "sites" in identity(today)["fleet"]


def test_what_a_file_extends_is_overlaid_key_by_key_but_tables_of_names_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "digits"\n[train]\nlr = 0.5\n[fleet.networks]\n5g = 1\n')

    loaded = load(str(file))

    assert loaded.name == "mine"
    assert (loaded.scenario.train.lr, loaded.scenario.train.batch) == (0.5, 16)
    assert loaded.scenario.fleet.networks == {"5g": 1.0}
    assert set(loaded.scenario.fleet.devices) == {"raspberry-pi-4", "jetson-nano", "phone-mid"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rat=0.1", "unknown key train.learning_rat, did you mean 'train.lr'?"),
        ("rounds.num_rounds=3", "unknown key rounds.num_rounds, did you mean 'rounds.max'?"),
        ("learning_rate=0.1", "unknown key learning_rate, did you mean 'train.lr'?"),
        ("target=0.9", "unknown key target, did you mean 'stop.target_accuracy'?"),
        ("data.alpha=0.3", "unknown key data.alpha, did you mean 'data.partition.alpha'?"),
        ("eval.adapt.rounds=3", "unknown key eval.adapt.rounds, did you mean 'rounds.max'?"),
        ("rounds.policy_options.buffer=0", "unknown key rounds.policy_options.buffer, did you mean 'rounds.buffer'?"),
        ("rounds.policy_options.xyz=0", "unknown key rounds.policy_options.xyz (known here: none)"),
        ("stop.target_accuracy=90", "stop.target_accuracy = 90: is above 1; say 0.9 or '90 %'"),
        (
            "stop.target_accuracy=x %",
            "stop.target_accuracy = 'x %': 'x %' is no number of percent, such as '90 %'",
        ),
        (
            "stop.target_accuracy=101 %",
            "stop.target_accuracy = '101 %': input should be less than or equal to 1",
        ),
        (
            "budget.bytes=1,5 MB",
            "budget.bytes = '1,5 MB': '1,5 MB' is not bytes: unknown unit ',5 MB', choose from B, kB, MB, GB, TB, PB, "
            "KiB, MiB, GiB, TiB",
        ),
        ("train.batch=true", "train.batch = true: must not be true or false"),
        ("train.lr.x=3", "train.lr.x: lr is a value, not a table"),
        ("seed=-1", "seed = -1: input should be greater than or equal to 0"),
        ("rounds.participants=11", "rounds.participants = 11: there are only 10 clients (data.clients)"),
        (
            "method_options.alpha=4",
            "method_options.alpha = 4: must be in 1..3, since the model has 4 blocks "
            "(sending all of them is what period = 0 does)",
        ),
        (
            "method_options.alpha=gmbz",
            "method_options.alpha = 'gmbz': must be one of gmbs, random; did you mean 'gmbs'?",
        ),
        (
            "budget.bytes=50 GBs",
            "budget.bytes = '50 GBs': '50 GBs' is not bytes: unknown unit 'GBs', did you mean 'GB'?",
        ),
        ("data.name=cifar11", "data.name: no data set 'cifar11'; did you mean 'cifar10'?"),
        ("model.name=resnet81", "model.name: no model 'resnet81'; did you mean 'resnet18'?"),
        ("fleet.devices={jetson-nanno=1}", "fleet.devices: 'jetson-nanno': did you mean 'jetson-nano'?"),
        ("fleet.networks={lt=1}", "fleet.networks: 'lt': did you mean 'lte'?"),
        ("fleet.networks=[1]", "fleet.networks = [1]: must be a table of shares, or a list of names, one per client"),
        ("fleet.gateways=3", "fleet.gateways = 3: must be a table"),
        ("rounds=5", "rounds = 5: must be a table; did you mean 'rounds.max'?"),
        ("data=mnist", "data = 'mnist': must be a table; did you mean 'data.name'?"),
        (
            "rounds.policy=async",
            "rounds.policy = 'async': must be one of sync, over_select, deadline, fedasync, fedbuff; did you mean "
            "'fedasync'?",
        ),
        (
            "method_options.mu=0.1",
            "unknown key method_options.mu: it is an option of fedprox",
        ),
        (
            "server_options.beta1=0.9",
            "unknown key server_options.beta1: it is an option of fedadam, fedyogi",
        ),
        ("fleet.gateways.kind=airtime", "fleet.gateways.kind = 'airtime': fleet.gateways.count = 0; choose 1 or more"),
        (
            "fleet.gateways={count=2, kind='airtime', up='3 Mbit/s'}",
            "fleet.gateways.up = 3 Mbit/s: fleet.gateways.kind = 'airtime' ignores it; choose 'rate'",
        ),
        (
            "fleet.gateways.fair=packets",
            "fleet.gateways.fair = 'packets': fleet.gateways.kind = 'rate' ignores it; choose 'airtime'",
        ),
        ("fleet.rates=3", "fleet.rates = 3: must be a list"),
        ("fleet.rates=[1,2,3]", "fleet.rates = [1, 2, 3]: too many values"),
        (
            "fleet.up_sigma=x",
            "fleet.up_sigma = 'x': must be one of a number, network",
        ),
        ('fleet.networks=["lte"]', "fleet.networks names 1 clients, but data.clients = 10"),
        ("travels.down=last:2", "travels.down = 'last:2': fedbr chooses the download of each visit"),
        (
            "model.blocks=balanced:9",
            "model.blocks = 'balanced:9': digits-cnn takes 'stages' or 'balanced:2' .. 'balanced:4'",
        ),
        ("model.name=cnn", "model.name = 'cnn' is made for 32x32 images; digits has 8x8"),
        ("train.lr=inf", "train.lr = inf: input should be a finite number"),
        ("train.lr=1e39", "train.lr = 1e+39: is too large"),
        ("train.lr=1e7", "train.lr = 10000000.0: input should be less than or equal to 1000000"),
        ("train.weight_decay=inf", "train.weight_decay = inf: input should be a finite number"),
        ("fleet.compute_spread=inf", "fleet.compute_spread = inf: input should be a finite number"),
        ("fleet.networks={lte=inf}", "fleet.networks.lte = inf: input should be a finite number"),
        ("method_options.lambda1=inf", "method_options.lambda1 = inf: input should be a finite number"),
        (f"seed={10**26}", "seed: an integer must lie within -2^53 .. 2^53"),
        (f"eval.batch={10**20}", "eval.batch: an integer must lie within -2^53 .. 2^53"),
        (f"seed=0x{'f' * 6000}", "seed: an integer must lie within -2^53 .. 2^53"),
        ("method_options.alpha=true", "method_options.alpha = true: must not be true or false"),
        ("method_options.lambda1=true", "method_options.lambda1 = true: must not be true or false"),
        ("data.root=/my/data", "data.root = '/my/data': digits comes with scikit-learn; leave data.root out"),
        ("train.nesterov=true", "train.nesterov = true needs train.momentum above 0"),
        ("train.instructions=avx2", "train.instructions = 'avx2': must be one of native, portable"),
        (
            "data.partition.file=mine.json",
            "data.partition.file = 'mine.json' is read only with data.partition.kind = file, not with dirichlet",
        ),
        (
            "model.blocks=balanced:²",
            "model.blocks = 'balanced:²': digits-cnn takes 'stages' or 'balanced:2' .. 'balanced:4'",
        ),
    ],
)
def test_a_bad_override_is_one_message_that_names_the_key(override: str, message: str) -> None:
    assert refusal(override) == f"command line: {message}"


def test_portable_numerics_are_refused_with_what_differs_between_processors() -> None:
    with pytest.raises(ScenarioError) as caught:
        load("digits", parsed(["train.instructions=portable", "train.threads=2"]))
    assert str(caught.value) == (
        "command line: train.instructions = portable: the order of sums depends on threads, and train.threads = 2; "
        "choose 1, or native"
    )
    with pytest.raises(ScenarioError) as caught:
        load("digits", parsed(["train.instructions=portable", "train.precision=bf16"]))
    assert str(caught.value) == (
        "command line: train.instructions = portable: kernels of AVX2 compute in fp32, and train.precision = bf16; "
        "choose fp32, or native"
    )


def test_a_number_or_list_without_end_is_refused_where_it_stands(tmp_path: Path) -> None:
    assert refusal(f"seed={'1' * 5000}").startswith("command line: seed: Exceeds the limit")
    assert refusal(f"{'.'.join('a' * 5000)}=1") == "digits.toml: tables or lists are nested too deeply"
    assert refusal(f"seed={'[' * 5000}").startswith("command line: seed: maximum recursion depth exceeded")
    (tmp_path / "long.toml").write_text(f"seed = {'1' * 5000}\n")
    (tmp_path / "deep.toml").write_text(f"seed = {'[' * 5000}\n")
    assert refusal(name=str(tmp_path / "long.toml")).startswith("long.toml: not valid TOML: Exceeds the limit")
    assert refusal(name=str(tmp_path / "deep.toml")) == "deep.toml: tables or lists are nested too deeply"
    assert refusal(name="x" * 300).startswith("no scenario 'xxx")


@pytest.mark.parametrize(
    ("spelled", "name"), [("fedprox", "fedprox"), ("fedavg + fedprox", "fedprox"), ("fedprox+fedmlb", "fedmlb+fedprox")]
)
def test_a_method_has_one_name_however_it_is_spelled(spelled: str, name: str) -> None:
    assert load("digits", parsed(["method_options={}", f"method={spelled}"])).scenario.method == name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["method=feddyn", "server=fedadam"],
            'server = "fedadam": feddyn makes its own server step and admits only "plain"',
        ),
        (["server=fedadm"], "server = 'fedadm': did you mean 'fedadam'?"),
        (
            ["server=fedavgm", "server_options.momentun=0.4"],
            "unknown key server_options.momentun, did you mean 'server_options.momentum'?",
        ),
        (["server_options.momentum=0.4"], "unknown key server_options.momentum: it is an option of fedavgm"),
        (["server=fedavgm", "server_options.momentum=1"], "server_options.momentum = 1: input should be less than 1"),
        (["server=fedadam", "server_options.lr=true"], "server_options.lr = true: must not be true or false"),
        (
            ["method=scaffold+feddyn"],
            "method: 'scaffold+feddyn': scaffold and feddyn both correct the same client drift, so each would "
            "learn from gradients that the other has corrected; join one of them",
        ),
        (
            ["method=fedbr+feddyn"],
            "method = 'fedbr+feddyn': feddyn's terms and its server step need the whole model that a visit starts "
            "from; fedbr may send a part of it",
        ),
        (
            ["method=feddyn", "travels.up=without:conv2,head"],
            "method = 'feddyn': feddyn's terms and its server step need the whole model that a visit starts from; "
            "conv2, head does not go up",
        ),
        (
            ["method=scaffold", "method_options.lean=true", "travels.down=without:head"],
            "method = 'scaffold': with method_options.lean = true, scaffold's server must know the model that "
            "each visit starts from; head does not go down",
        ),
        (
            ["method=feddyn", "rounds.policy=fedbuff"],
            "rounds.policy: feddyn's server steps from the model that all clients of a round were sent, and "
            "asynchronous policies have no such rounds",
        ),
        (
            ["method=scaffold", "method_options.lean=true", "rounds.policy=fedasync"],
            "method_options.lean = true: asynchronous policies (rounds.policy) rebase updates to the current "
            "model, so that the server cannot compute a client's own change",
        ),
        (
            ["method=scaffold", "aggregate.sum=fixed_point"],
            'aggregate.sum = "fixed_point": scaffold needs individual updates',
        ),
    ],
)
def test_methods_and_servers_that_make_no_sense_together_say_why(overrides: list[str], message: str) -> None:
    assert refusal(*overrides) == f"command line: {message}"


def test_a_server_optimiser_is_written_out_with_all_its_options_which_a_file_replaces_as_one(tmp_path: Path) -> None:
    loaded = load("digits", parsed(["server=fedadam", "server_options.lr=0.02", "method=fedbr+scaffold"]))
    (tmp_path / "base.toml").write_text('extends = "digits"\nserver = "fedavgm"\n[server_options]\nmomentum = 0.6\n')
    file = tmp_path / "mine.toml"
    file.write_text('extends = "base.toml"\nserver = "fedyogi"\n[server_options]\ntau = 0.1\n')

    assert loaded.scenario.server_options == {"lr": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    assert load("digits").scenario.server_options == {}
    assert load(str(file)).scenario.server_options == {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.1}


OWN = "tests.plugins.optioned"


@pytest.mark.parametrize(
    ("key", "own", "other", "table"),
    [
        ("method", "METHOD", "fedavg", "method_options"),
        ("server", "SERVER", "plain", "server_options"),
        ("rounds.selection", "SELECTION", "uniform", "rounds.selection_options"),
        ("rounds.policy", "POLICY", "sync", "rounds.policy_options"),
        ("train.lr_schedule", "SCHEDULE", "constant", "train.lr_schedule_options"),
        ("data.partition.kind", "PARTITION", "iid", "data.partition.options"),
    ],
)
def test_a_file_that_names_another_row_replaces_the_options_of_the_one_it_extends(
    key: str, own: str, other: str, table: str, tmp_path: Path
) -> None:
    (tmp_path / "base.toml").write_text(f'extends = "digits"\n{key} = "{OWN}:{own}"\n{table} = {{ amount = 0.5 }}\n')
    (tmp_path / "mine.toml").write_text(f'extends = "base.toml"\n{key} = "{other}"\n{table} = {{}}\n')

    options = {
        name: value_at(load(str(tmp_path / f"{name}.toml")).scenario.model_dump(), table) for name in ("base", "mine")
    }
    assert options["base"]["amount"] == 0.5
    assert "amount" not in options["mine"]


def test_options_of_metrics_are_told_apart_by_name_and_so_overlaid(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "digits"\neval.metric_options.hessian.pairs = "distinct"\n')
    (tmp_path / "mine.toml").write_text(
        'extends = "base.toml"\neval.metrics = ["hessian"]\neval.metric_options.hessian.batch = 2\n'
    )
    options = load(str(tmp_path / "mine.toml")).scenario.eval.metric_options["hessian"]
    assert (options["pairs"], options["batch"]) == ("distinct", 2)


SCORED_BY_CLIENT = replace(FEDAVG, name="scored-by-client", evaluation=ModelEvaluation(on="clients"))


def test_a_method_scored_client_by_client_needs_local_test_examples_and_no_part_of_the_global_set(
    tmp_path: Path,
) -> None:
    (tmp_path / "shares.json").write_text("{}")
    name = f"{__name__}:SCORED_BY_CLIENT"
    from_file = ["data.partition.kind=file", f"data.partition.file={tmp_path / 'shares.json'}"]

    assert load("digits", parsed([f"method={name}"])).scenario.method == name
    assert load("digits", parsed(["eval.subset=100"])).scenario.eval.subset == 100
    assert refusal(f"method={name}", *from_file) == (
        f"command line: data.partition.kind = file assigns no test examples to clients, but {name} is evaluated on "
        "each client's own test examples"
    )
    assert refusal(f"method={name}", "eval.subset=100") == (
        f"command line: eval.subset = 100: {name} is evaluated on each client's own test examples, not on the test set"
    )
    assert refusal("eval.on=both", *from_file) == (
        "command line: data.partition.kind = file assigns no test examples to clients, but eval.on = both evaluates "
        "models on each client's own test examples"
    )
    assert load("digits", parse_all(["eval.on=clients", "eval.split=train", *from_file])).scenario.eval.split == "train"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "eval.on=clients eval.subset=100",
            "eval.subset = 100: eval.on = clients evaluates models on each client's own test examples, not on the test "
            "set",
        ),
        (
            "fleet.transport.noise=measure",
            "fleet.transport.noise = 'measure': must be one of a number, measured; did you mean 'measured'?",
        ),
        ("eval.on=client", "eval.on = 'client': must be one of global, clients, both; did you mean 'clients'?"),
        ('eval.metrics=["acuracy"]', "eval.metrics: no metric 'acuracy'; did you mean 'accuracy'?"),
        (
            'eval.metrics=["tests.plugins.gradient_norm:NAMESAKE"]',
            "eval.metrics: 'tests.plugins.gradient_norm:NAMESAKE' has the name of another metric, 'accuracy'",
        ),
        (
            "eval.split=train",
            'eval.split = train: is of clients\' own examples, but eval.on = "global"; choose "clients" or "both"',
        ),
        (
            "eval.on=both eval.split=validation",
            "eval.split = validation: data.validation = 0 holds out no examples; choose train or test",
        ),
        (
            "eval.adapt.epochs=2",
            'eval.adapt.epochs = 2: adapts the models of clients, but eval.on = "global"; choose "clients" or "both"',
        ),
        ("eval.on=both eval.adapt.lr=0.1", "eval.adapt.lr = 0.1: needs eval.adapt.epochs above 0"),
        ("eval.on=both eval.adapt.before=true", "eval.adapt.before = true: needs eval.adapt.epochs above 0"),
        (
            "eval.on=both eval.select=validation",
            "eval.select = validation: data.validation = 0 holds out no examples; choose data.validation above 0",
        ),
        (
            "eval.select=validation data.validation=0.1",
            "eval.select = validation: is of clients' own examples, but eval.on = \"global\" evaluates no client's "
            'model; choose "clients" or "both"',
        ),
        (
            "eval.on=both eval.split=validation eval.select=validation data.validation=0.1",
            "eval.select = validation: eval.split is evaluated already; choose eval.split = test or train",
        ),
        ("eval.select=test", "eval.select = 'test': must be one of validation"),
        ("stop.patience=0", "stop.patience = 0: input should be greater than or equal to 1"),
        (
            "eval.charged=true",
            'eval.charged = true: charges evaluation on clients, but eval.on = "global"; choose "clients" or "both"',
        ),
        (
            "rounds.on_late=finish rounds.policy=fedbuff",
            "rounds.on_late = finish: rounds.policy = fedbuff leaves no visit late; choose over_select or deadline, "
            "or on_late = stop",
        ),
        (
            "eval.charged=true eval.on=both rounds.policy=deadline rounds.on_late=finish",
            "eval.charged = true: its visits would share links with the messages of late visits, which is not "
            "modelled; choose rounds.on_late = stop",
        ),
        (
            "rounds.on_late=finish rounds.policy=deadline fleet.gateways.count=2 fleet.gateways.kind=airtime",
            "rounds.on_late = finish: messages of late visits go on over links, but fleet.gateways.kind = airtime; "
            "choose rate, or on_late = stop",
        ),
        (
            "eval.charged=true eval.on=both rounds.policy=fedbuff",
            "eval.charged = true: needs rounds that end, but rounds.policy = fedbuff is asynchronous; choose sync, "
            "over_select or deadline",
        ),
    ],
)
def test_evaluations_and_late_messages_that_cannot_be(overrides: str, message: str) -> None:
    assert refusal(*overrides.split()) == f"command line: {message}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("train.lr=fast", "train.lr = 'fast': input should be a valid number"),
        ("method=fedmlp", "method: no method 'fedmlp'; did you mean 'fedmlb'"),
        ("method=async", "method: no method 'async'; fedasync is a round policy: rounds.policy = 'fedasync'"),
        ("method=fedadam+fedprox", "method: no method 'fedadam'; fedadam is a server optimizer: server = 'fedadam'"),
        ("method=fedavg+", "method: 'fedavg+': a name is missing beside '+'; write one on both sides, as in "),
        (
            "data.name=femnist model.name=cnn data.partition.kind=epsilon",
            "data.partition.kind = epsilon is defined for sets of 10 or 100 classes; femnist has 62",
        ),
        (
            "model.name=shufflenet model.width=20",
            "model.width = 20: shufflenet needs a multiple of 12; the nearest is 24",
        ),
        ("data.name=mnist model.name=cnn model.width=8", "model.width = 8: cnn has no width"),
        ("fleet={sites={count=2},gateways={count=3}}", "unknown key fleet.sites"),
    ],
)
def test_values_that_do_not_fit_each_other_are_one_message_too(overrides: str, message: str) -> None:
    assert refusal(*overrides.split(" ")).startswith(f"command line: {message}")


def test_an_error_of_a_file_names_the_file_and_one_that_is_not_there_the_nearest(tmp_path: Path) -> None:
    for name, text in (
        ("mine", 'extends = "digits"\n[train]\nlearning_rat = 0.1\n'),
        ("a", 'extends = "b.toml"\n'),
        ("b", 'extends = "a.toml"\n'),
        ("broken", "seed = \n"),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    mine, circle, broken, absent = (
        refusal(name=str(tmp_path / f"{name}.toml")) for name in ("mine", "a", "broken", "x")
    )

    assert mine == "mine.toml: unknown key train.learning_rat, did you mean 'train.lr'?"
    assert circle == "a.toml: extends: the files extend each other in a circle"
    assert broken.startswith("broken.toml: not valid TOML: ") and "line 1" in broken
    assert refusal(name="digitz") == "no scenario 'digitz': did you mean 'digits'? (or name a TOML file)"
    assert absent == f"{tmp_path / 'x.toml'}: no such file"


@pytest.mark.parametrize("key", ["data.partition.seed", "fleet.seed"])
def test_partition_and_fleet_have_the_runs_seed_unless_they_are_given_one(key: str, tmp_path: Path) -> None:
    def seed(*overrides: str, name: str = "digits") -> int | None:
        scenario = load(name, parse_all(overrides)).scenario
        return scenario.fleet.seed if key == "fleet.seed" else scenario.data.partition.seed

    assert [seed(), seed("seed=3"), seed("seed=3", f"{key}=0")] == [0, 3, 0]
    # A run's own file has the number, so that another seed of it has the same partition or fleet.
    copy = tmp_path / "scenario.toml"
    copy.write_text(scenario_text(load("digits", parsed(["seed=3"])).scenario.model_dump()))
    assert [seed(name=str(copy)), seed("seed=4", name=str(copy))] == [3, 3]


def test_a_fleet_that_follows_the_runs_seed_leaves_chains_and_run_ids_as_they_were() -> None:
    follows, same, fixed = (
        identity(load("digits", parse_all(["seed=3", *more]))) for more in ([], ["fleet.seed=3"], ["fleet.seed=4"])
    )
    assert "seed" not in follows["fleet"]
    assert same == follows
    assert fixed["fleet"].pop("seed") == 4
    assert fixed == follows


def test_with_a_method_given_only_the_options_that_it_has_are_kept() -> None:
    options = ["method_options.lambda1=0.5", "method_options.period=7"]

    assert load("digits", parse_all(options), method="fedmlb").scenario.method_options["lambda1"] == 0.5
    assert load("digits", parse_all(options), method="fedbr").scenario.method_options["period"] == 7
    assert load("digits", parse_all(options), method="fedavg").scenario.method_options == {}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
tables = st.recursive(
    st.dictionaries(texts, st.one_of(values, st.none(), st.lists(values, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


@settings(max_examples=80, deadline=None)
@given(tables)
def test_toml_text_is_read_back_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(table)) == without_none(table)


@pytest.mark.parametrize(
    ("overrides", "others"),
    [
        ([], ["model.norm=none", "train.frozen_statistics=running", "method_options.preset=paper"]),
        (["model.name=resnet18"], ["model.name=resnet18", "model.norm=group"]),
        (
            ["method_options.preset=tuned"],
            [f"method_options.{key}={str(value).lower()}" for key, value in TUNED.items()],
        ),
    ],
)
def test_a_default_or_preset_that_is_written_out_changes_no_chain(overrides: list[str], others: list[str]) -> None:
    one, other = identity(load("digits", parse_all(overrides))), identity(load("digits", parse_all(others)))
    assert one == other
    assert "norm" not in one["model"] and "frozen_statistics" not in one["train"]
    assert "preset" not in one["method_options"]
    assert one != identity(load("digits", parse_all([*overrides, "model.norm=batch"])))


def test_a_preset_is_written_out_and_goes_with_no_other_values() -> None:
    tuned = "method_options.preset=tuned"
    options = load("digits", parse_all([tuned, "method_options.alpha=2", "method_options.detach=true"])).options
    assert options.model_dump() == FedBROptions().model_dump() | dict(TUNED) | {
        "preset": "tuned",
        "detach": True,
    }
    with pytest.raises(ScenarioError, match=r'preset = "tuned" has period = 1, and 7 is given; leave one of them out'):
        load("digits", parse_all([tuned, "method_options.period=7"]))
    assert FedBROptions(preset="paper") == FedBROptions()
