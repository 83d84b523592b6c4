"""Large documents beside the event loop: how long one waits for its turn."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from paddlepool.contracts.errors import Overloaded
from paddlepool.service.api.services import LARGE_BYTES, run_off_loop
from tests.service.api.fakes import FakeRegistry, make_services, make_settings

PATIENCE = 60.0


async def test_what_waits_too_long_for_its_turn_is_refused() -> None:
    """Within the time that a request has; it is never begun, and what has begun ends."""
    begun, may_end, second = threading.Event(), threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        assert may_end.wait(PATIENCE)
        return "read"

    with ThreadPoolExecutor(1) as thread:
        services = make_services(
            registry=FakeRegistry(models=[]),
            operations=thread,
            settings=make_settings(timeout_default_ms=300),
        )
        aside = partial(run_off_loop, services, size=LARGE_BYTES + 1)
        running = asyncio.create_task(aside(first))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        started = time.monotonic()
        with pytest.raises(Overloaded, match=r"waited 0\.3 s") as caught:
            await aside(second.set)
        assert time.monotonic() - started >= 0.3
        assert (caught.value.limit, caught.value.retry_after) == (0.3, 1.0)
        left = asyncio.create_task(aside(second.set))
        await asyncio.sleep(0)
        left.cancel()  # its client has gone
        with pytest.raises(asyncio.CancelledError):
            await left
        may_end.set()
        assert await running == "read"
        assert await aside(second.is_set) is False
