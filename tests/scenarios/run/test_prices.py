"""What a run's data and energy cost: figures by hand, in a run, in a month, in budgets, and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.rounds.budget import PRICE, Budget, Cost, RunLimits
from costmodel.config import Prices
from scenarios.report.result_tables import results
from scenarios.report.run_reader import RecordedRun
from scenarios.report.terminal import _paid
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import SummaryRecord
from scenarios.studies.decide import evidence
from scenarios.studies.replay import prepared
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.in_this_process import summary_of_run

PRICES = "fleet.price={gb=5, kwh=0.3, plan='1 MB/month', monthly=20, every='6 d'}"


def test_a_month_costs_plans_what_is_beyond_them_and_energy() -> None:
    prices = Prices(gb=5.0, kwh=0.3, plan=10 * 10**9, monthly=20.0, every=2 * 86_400.0)
    # 4 GB and 18 MJ = 5 kWh.
    assert prices.of(4e9, 18e6) == pytest.approx(20.0 + 1.5)
    # 15 runs a month: 60 GB of one router, 50 beyond its plan; 7.5 GB of the other, all within; 75 kWh.
    assert prices.month([4e9, 0.5e9], 18e6) == pytest.approx(
        {"runs": 15.0, "plans": 40.0, "data": 250.0, "energy": 22.5, "price": 312.5}
    )
    assert Prices(gb=5.0).month([1e9], 0.0)["price"] == 150.0  # without a plan all of 30 GB


def test_a_budget_of_money_reserves_bytes_and_joules() -> None:
    budget = Budget(RunLimits(price=7.0), 9, prices=Prices(gb=5.0, kwh=0.5))
    # 1 GB and 3.6 MJ: 5.5; the next 1.5 GB would make 13.
    fits, rule = budget.reserve([Cost(bytes_up=10**9, joules=3.6e6), Cost(bytes_down=3 * 10**9 // 2)])
    assert (fits, rule) == ([True, False], PRICE)
    assert Budget(RunLimits(price=7.0), 9).reserve([Cost(bytes_up=10**12)]) == ([True], None)  # nothing has a price


@pytest.mark.usefixtures("pool_in_this_process")
def test_a_run_says_what_it_has_cost_and_what_a_month_of_it_costs(tmp_path: Path) -> None:
    words = ("method=fedavg", "rounds.max=4", "train.local_steps=1", "rounds.participants=10", PRICES)
    result = summary_of_run(tmp_path, *words, "fleet.gateways={count=3, assign='place'}", run_id="a")
    # 617,230 bytes for five visits: 123,446 each; of ten clients gateway 0 has four, the others three.
    assert result["bytes_down"] + result["bytes_up"] == 40 * 123_446
    paid = result["paid"]
    assert paid["bytes_by_gateway"] == {"0": 16 * 123_446, "1": 12 * 123_446, "2": 12 * 123_446}
    assert (paid["data"], paid["busiest"]) == (pytest.approx(5 * 0.00493784), "0")
    assert paid["energy"] == pytest.approx(0.3 * result["joules"] / 3.6e6)
    # 5 runs a month: 9.88 MB of gateway 0 and 7.41 MB of each other, 1 MB of them in its plan.
    assert paid["plan_used"] == pytest.approx(9.87568)
    assert paid["month"]["data"] == pytest.approx(5 * (24.6892 - 3) / 1000)
    assert (paid["month"]["plans"], paid["month"]["runs"]) == (60.0, 5.0)
    assert _paid(SummaryRecord.model_validate(result)).endswith("a month of 5 runs, 988 % of the plan of 0")
    table = results([RecordedRun(tmp_path / "digits" / "a")], None, {}, nominal=False)
    place = [column.key for column in table.columns].index("paid")
    assert [table.columns[place].over, table.rows[0][place], table.rows[0][place + 1]] == [
        "Price",
        pytest.approx(paid["data"] + paid["energy"]),
        pytest.approx(paid["month"]["price"]),
    ]
    point, again = RunFolder(tmp_path / "digits" / "a").trail[-1], evidence.played(prepared(tmp_path / "digits" / "a"))
    assert point.price is not None
    assert point.price == pytest.approx(paid["data"] + paid["energy"])
    assert again[-1].price == point.price

    half = summary_of_run(tmp_path, *words, f"budget.price={0.55 * point.price}", run_id="b")
    assert (half["rounds"], half["stopped_by"]) == (2, "price")
