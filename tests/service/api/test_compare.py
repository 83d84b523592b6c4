"""/compare/data: the figures of each instance group, cheap, bounded and behind the API keys."""

from dataclasses import replace
from typing import Any

import pytest

from paddlepool.contracts.reasons import ShadowOutcome
from paddlepool.contracts.status import Effect, ModelStatus
from paddlepool.models.repository.config import InstanceGroup, ModelConfig
from paddlepool.observability.history import History
from paddlepool.observability.metrics import Metrics
from paddlepool.service.api.compare import window_seconds
from tests.engine.fakes import ManualClock
from tests.service.api.fakes import GROUP, Client, FakeModel, FakeRegistry, assert_problem, make_app

REFUSED = replace(
    GROUP,
    name="two",
    started=False,
    ready=False,
    live=0,
    resident_bytes=0,
    reason="not started yet",
    effect=Effect(None, "cannot start: this processor has no bfloat16"),
)


EFFECTIVE = replace(GROUP, effect=Effect(True, "other outputs than two"))
CONFIG = ModelConfig(
    default_group="one",
    instance_group=(
        InstanceGroup(name="one", backend="fake", base="two"),
        InstanceGroup(name="two", backend="fake", start="on_demand", options={"bfloat16": True}),
    ),
)


@pytest.fixture
def client() -> Client:
    model = FakeModel(config=CONFIG, statuses=(EFFECTIVE, REFUSED))
    return Client(make_app(registry=FakeRegistry(models=[model])))


@pytest.fixture
def metrics(client: Client) -> Metrics:
    return client.services.metrics


def groups(client: Client, **query: object) -> dict[str, dict[str, Any]]:
    response = client.get("/compare/data", params={k: str(v) for k, v in query.items()})
    assert response.status_code == 200, response.text
    [model] = response.json()["models"]
    return {group["name"]: group for group in model["groups"]}


@pytest.mark.parametrize("seconds", [2e-5, 0.000_18, 0.000_9, 3.0])
def test_short_times_are_as_right_as_long_ones(
    client: Client, metrics: Metrics, seconds: float
) -> None:
    for _ in range(20):
        metrics.batch_done(model="m1", version=1, group="one", rows=1, seconds=seconds)
    times = groups(client, window="1m")["one"]["times"]
    assert times["p50"] == pytest.approx(seconds, rel=1 / 6)  # half a bucket


def test_times_of_what_has_run(client: Client, metrics: Metrics) -> None:
    """To the bucket; a ratio is only in `choice`: moments of different load are not compared."""
    assert groups(client)["two"]["times"]["p50"] is None
    for group, seconds in (("one", 0.04), ("two", 0.02)):
        for _ in range(20):
            metrics.batch_done(model="m1", version=1, group=group, rows=1, seconds=seconds)
    by_name = groups(client, window="1m")
    assert by_name["one"]["times"]["p50"] == pytest.approx(0.04, rel=0.15)
    assert "ratio" not in by_name["two"]
    assert by_name["two"]["rate"] > 0


@pytest.mark.parametrize(("uptime", "seconds"), [(5.0, 5.0), (59.0, 59.0), (1003.0, 53.0)])
def test_a_window_is_no_longer_than_the_server_has_run(uptime: float, seconds: float) -> None:
    """It begins with an interval: six intervals of ten seconds, of which the last is not over."""
    clock = ManualClock()
    history = History(clock)
    clock.advance(uptime)
    assert window_seconds(history, 6) == seconds


def test_a_refused_group_says_why(client: Client) -> None:
    by_name = groups(client)
    assert by_name["one"]["effective"] is True
    assert by_name["one"]["proof"] == "other outputs than two"
    assert by_name["one"]["base"] == "two"
    assert by_name["two"]["refused"] == "cannot start: this processor has no bfloat16"
    assert (by_name["two"]["start"], by_name["two"]["options"]) == ("on_demand", {"bfloat16": True})


def test_the_choice_and_shadowing_are_told(client: Client, metrics: Metrics) -> None:
    metrics.drifted(model="m1", group="two", drift=0.0, agreement=1.0)
    metrics.drifted(model="m1", group="two", drift=0.01, agreement=0.9)
    metrics.shadowed(model="m1", outcome=ShadowOutcome.REPLAYED)
    [model] = client.get("/compare/data").json()["models"]
    assert model["choice"]["by"] == "measured"
    assert [candidate["group"] for candidate in model["choice"]["candidates"]] == ["two"]
    assert model["shadowing"]["outcomes"]["replayed"] == 1
    replays = model["groups"][1]["replays"]
    assert (replays["count"], replays["same_bits"], replays["agreement"]) == (2, 1, 0.95)
    assert replays["p99"] == pytest.approx(0.01, rel=0.5)


def test_a_model_that_is_not_served_says_why() -> None:
    broken = ModelStatus(name="m2", version=4, state="UNAVAILABLE", reason="its file is damaged")
    client = Client(make_app(registry=FakeRegistry(failed=[broken])))
    [_, model] = client.get("/compare/data").json()["models"]
    assert (model["name"], model["reason"], model["groups"]) == ("m2", "its file is damaged", [])


@pytest.mark.parametrize(
    "query", [{"window": "2m"}, {"after": "-2"}, {"after": "now"}], ids=["window", "low", "word"]
)
def test_a_wrong_question_is_answered_with_what_it_may_be(
    client: Client, query: dict[str, str]
) -> None:
    assert_problem(client.get("/compare/data", params=query), 422, "invalid_parameter")
