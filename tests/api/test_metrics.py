"""GET /metrics: what it shows of the engine."""

import asyncio
import threading
from typing import cast

from app.api.metrics import Scrapes, read_gauges
from app.contracts.status import ModelStatus
from app.engine.registry.registry import ModelRegistry
from tests.api.fakes import FakeModel, FakeRegistry


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


def test_the_text_is_made_once_for_all_who_wait() -> None:
    begun, may_end, made = threading.Event(), threading.Event(), []

    def render(accept: str, names: tuple[str, ...]) -> tuple[bytes, str]:
        made.append(threading.current_thread())
        begun.set()
        assert may_end.wait(60)
        return b"%d" % len(made), accept

    async def scrape() -> list[tuple[bytes, str]]:
        scrapes = Scrapes()

        def ask() -> asyncio.Task[tuple[bytes, str]]:
            return asyncio.create_task(scrapes.exposition(render, "text/plain", ()))

        first = ask()
        assert await asyncio.to_thread(begun.wait, 60)
        later = [ask() for _ in range(20)]
        await asyncio.sleep(0)
        later.pop(0).cancel()
        may_end.set()
        return [await first, *{await each for each in later}]

    assert [text for text, _ in asyncio.run(scrape())] == [b"1", b"2"]
    assert len(made) == 2
