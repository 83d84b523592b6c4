"""A caller with little to do does not wait for the run of another one's flood."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from app.contracts.errors import BackendError, WorkerCrashed
from app.contracts.ports import InferResult
from app.engine.pool import restart_backoff
from app.engine.pool.restart_backoff import MOST_LOSSES
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    Gate,
    RecordingObserver,
    calling,
    row,
    served_double,
    wait_until,
    write_double,
)


class Flooded:
    """Model `double`, whose only instance runs for a flood; a run ends when the gate lets it.

    Express instances come from a factory of their own, whose runs end at once.
    """

    def __init__(self, root: Path, *, asked_for: bool = True) -> None:
        self.gate = Gate()
        self.factory, self.express = FakeFactory(), FakeFactory()
        self.observer = RecordingObserver()
        write_double(root, batch=1, express=asked_for)
        self.model = served_double(root, self.factory, self.observer, open_express=self.express)
        self.model.start()
        self.factory.behaviour = self.gate
        self.flood = [self.submit("flood") for _ in range(4)]
        self.gate.wait_entered()

    def submit(self, caller: str, *, timeout: float = PATIENCE) -> Future[InferResult]:
        with calling(caller):
            return self.model.submit(row(1), deadline=time.monotonic() + timeout)

    def close(self) -> None:
        self.gate.open()
        self.model.close()


Flood = Callable[..., Flooded]


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[Flood]:
    made: list[Flooded] = []

    def build(**options: bool) -> Flooded:
        made.append(Flooded(tmp_path, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def test_nobody_waits_for_the_run_of_a_flood(flood: Flood) -> None:
    """The first one opens the express instance, which stays, answers, and is counted as memory
    but not as an instance that anybody's jobs may use."""
    served = flood()
    before = served.model.groups()[0]
    for _ in range(3):
        result = served.submit("quiet").result(timeout=PATIENCE)
        assert (result.group, result.instance) == ("main", 1)
    assert len(served.express.opened) == 1
    after = served.model.groups()[0]
    assert (after.live, after.count) == (before.live, before.count) == (1, 1)
    assert after.resident_bytes == 2 * before.resident_bytes
    assert not any(each.done() for each in served.flood)
    served.gate.open()
    assert [each.result(timeout=PATIENCE).instance for each in served.flood] == [0] * 4
    served.model.close()
    assert served.express.opened[0].closed.is_set()


def test_a_lost_express_instance_is_opened_again(flood: Flood) -> None:
    """And costs nobody a request while it was idle."""
    served = flood()
    served.submit("quiet").result(timeout=PATIENCE)
    served.express.opened[0].abort()
    served.observer.wait_for(lambda: bool(served.observer.restarts))
    assert served.submit("quiet").result(timeout=PATIENCE).instance == 1
    assert len(served.express.opened) == 2


@pytest.mark.parametrize("why", ["refused", "no memory"])
def test_where_none_can_be_opened_the_others_serve(
    why: str, flood: Flood, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once, and said."""
    served = flood()
    if why == "refused":
        served.express.refuse = BackendError("not twice")
    else:
        monkeypatch.setattr("app.engine.pool.opening.available_memory", lambda: (1 << 20) - 1)
    with caplog.at_level(logging.INFO, "app.engine.pool.group"):
        quiet = [served.submit(name) for name in ("a", "b")]
        wait_until(lambda: "no express instance" in caplog.text)
    assert served.model.ready()
    served.gate.open()
    assert {each.result(timeout=PATIENCE).instance for each in quiet + served.flood} == {0}
    assert len(served.express.specs) == (1 if why == "refused" else 0)


def test_one_that_keeps_dying_delays_no_other(
    flood: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its losses are its own: the group is in no crash loop while another is replaced."""
    monkeypatch.setattr(restart_backoff, "DELAYS", (0.01,) * 9)
    served = flood()
    served.express.refuse = WorkerCrashed("killed while it was opened")
    quiet = served.submit("quiet")
    served.observer.wait_for(lambda: len(served.observer.restarts) > MOST_LOSSES)
    served.gate.open()
    for each in [quiet, *served.flood]:
        each.result(timeout=PATIENCE)
    wait_until(served.model._groups["main"].idle)
    served.express.refuse = None
    served.factory.selftest = replaced = Gate()
    served.factory.opened[0].abort()
    replaced.wait_entered()
    state = served.model.groups()[0]
    replaced.open()
    assert (state.live, state.reason) == (0, "restarting")
    assert served.submit("flood").result(timeout=PATIENCE).instance == 0


def test_where_there_is_no_thread_for_it_the_others_serve(
    flood: Flood, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once, and said: not for each of a flood's requests."""
    served = flood()

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("app.engine.pool.group.Instance", refuse)
    quiet = [served.submit("quiet") for _ in range(2)]
    more = [served.submit("flood") for _ in range(3)]
    assert caplog.text.count("no express instance") == 1
    served.gate.open()
    assert {each.result(timeout=PATIENCE).instance for each in quiet + more} == {0}


def test_a_run_that_stands_almost_still_is_not_given_up(flood: Flood) -> None:
    """Beside an express instance it has an eighth of the processor: eight times its usual time,
    however soon its jobs were to be answered."""
    served = flood()
    served.factory.seconds = 2.0
    served.gate.open()
    for each in served.flood:
        each.result(timeout=PATIENCE)
    served.submit("flood", timeout=1.0).result(timeout=PATIENCE)
    assert served.factory.opened[0].timeouts[-1] > 8.5 * 2.0


def test_a_model_that_does_not_ask_for_it_has_none(flood: Flood) -> None:
    """Another process in memory is its operator's decision."""
    served = flood(asked_for=False)
    quiet = served.submit("quiet")
    served.gate.open()
    assert quiet.result(timeout=PATIENCE).instance == 0
    assert served.express.specs == []
