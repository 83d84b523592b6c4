"""GET /metrics: what it shows of the engine."""

from typing import cast

from app.contracts.status import ModelStatus
from app.engine.registry.registry import ModelRegistry
from app.service.api.info import read_gauges
from tests.service.api.fakes import FakeModel, FakeRegistry


def test_gauges_are_read_from_what_is_served() -> None:
    broken = ModelStatus(name="m2", version=4, state="UNAVAILABLE", reason="broken")
    registry = FakeRegistry(
        models=[FakeModel(), FakeModel(version=2, is_ready=False)], failed=[broken]
    )
    first, second, third = read_gauges(cast(ModelRegistry, registry))
    assert (first.model, first.version, first.ready) == ("m1", 1, True)
    assert (second.version, second.ready) == (2, False)
    assert (third.model, third.version, third.ready, third.groups) == ("m2", 4, False, ())
    [group] = first.groups
    assert (group.queue_depth, group.inflight, group.resident_bytes) == (3, 1, 1000)
    assert first.chosen_by == "measured"
    assert (first.default_group, group.name, group.queue_limit) == ("one", "one", 32)
