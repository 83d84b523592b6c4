"""How late the event loop wakes."""

from __future__ import annotations

import asyncio
import time

from app.service.server.loop_lag import INTERVAL_SECONDS, watch_loop


def test_a_step_that_blocks_the_loop_is_seen() -> None:
    """By the rest of it after the timer was due; never as less than nothing."""
    seen: list[float] = []

    async def scenario() -> None:
        watching = asyncio.create_task(watch_loop(seen.append))
        loop = asyncio.get_running_loop()
        loop.call_later(INTERVAL_SECONDS / 2, time.sleep, INTERVAL_SECONDS)
        await asyncio.sleep(3 * INTERVAL_SECONDS)
        watching.cancel()

    asyncio.run(scenario())
    assert seen[0] >= 0.4 * INTERVAL_SECONDS
    assert min(seen) >= 0
