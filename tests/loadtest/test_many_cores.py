"""The simulation of a server, against servers that can be calculated by hand."""

import json

import pytest
from harness import ROOT
from many_cores import costs_of, page
from simulated_server import API_PROCESS, MAX_ROWS, Cores, Costs, PartCosts, simulate

PAGE = ROOT / "docs" / "many-cores.md"
COSTS = Costs(
    api=PartCosts(text=200e-6, run=80e-6),
    predictor=PartCosts(text=400e-6, run=800e-6),
    client=PartCosts(text=40e-6, run=0.0),
    balancer=100e-6,
    message=10e-6,
)


def test_one_client_waits_for_each_step_in_turn() -> None:
    alone = simulate(COSTS, cores=4, predictors=1, clients=1)
    seconds = 200e-6 + 80e-6 + 400e-6 + 800e-6 + 4 * 10e-6
    assert alone.per_second == pytest.approx(1 / seconds, rel=0.01)
    assert alone.rows == 1.0


def test_a_predictor_that_never_waits_runs_full_batches() -> None:
    busy = simulate(COSTS, cores=4, predictors=1, clients=64)
    assert busy.rows == pytest.approx(MAX_ROWS)
    assert busy.per_second == pytest.approx(1 / (400e-6 + 800e-6 / MAX_ROWS), rel=0.02)
    assert busy.predictors == pytest.approx(1.0, abs=0.02)


def test_the_api_process_is_the_limit_on_many_cores() -> None:
    many = simulate(COSTS, cores=32, predictors=32, clients=512)
    assert many.limit == API_PROCESS
    assert many.per_second == pytest.approx(1 / (200e-6 + 80e-6 / many.rows), rel=0.02)


def test_clients_and_a_balancer_on_the_same_cores_take_their_share() -> None:
    free = simulate(COSTS, cores=2, predictors=2, clients=32)
    shared = simulate(COSTS, cores=2, predictors=2, clients=32, clients_share_cores=True)
    balanced = simulate(COSTS, cores=2, predictors=2, clients=32, balanced=True)
    assert free.limit == shared.limit == "the cores"
    assert shared.per_second < 0.97 * free.per_second
    assert balanced.per_second < 0.92 * free.per_second


def test_cores_are_divided_by_weight_and_delays_need_none() -> None:
    cores, ended = Cores(1), list[str]()
    cores.work(0, 1.0, lambda: ended.append(f"normal {cores.now:.3f}"))
    cores.work(1, 1.0, lambda: ended.append(f"low {cores.now:.3f}"))
    cores.after(1.5, lambda: ended.append(f"delay {cores.now:.3f}"))
    cores.run(10.0)
    assert ended == ["normal 1.107", "delay 1.500", "low 2.000"]


def test_costs_come_from_the_two_points() -> None:
    def point(processes: int, clients: int, rows: float, api: float) -> dict[str, float]:
        parts = {"predictors": 2 * api, "client": 10e-6, "per_second": 1000.0, "others": 0.0}
        return {"processes": processes, "clients": clients, "rows": rows, "api": api, **parts}

    points = [point(1, 1, 1.0, 300e-6), point(1, 8, 3.0, 1.0), point(2, 32, 8.0, 213e-6)]
    costs = costs_of(points, 100e-6, cores=2)
    assert costs.api.run == pytest.approx(87e-6 / (1 - 1 / 8))
    assert costs.api.text + costs.api.run == pytest.approx(300e-6)
    assert costs.message == pytest.approx((1e-3 - 910e-6) / 4)
    assert costs.used == pytest.approx(0.5 * (213e-6 + 426e-6 + 10e-6) * 1000)


def test_the_committed_page_is_that_of_its_points() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    assert page(figures) == PAGE.read_text("utf-8")
