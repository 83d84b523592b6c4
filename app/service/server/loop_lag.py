"""Measure the event loop's lag: every request waits that long for each of its steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL_SECONDS = 0.1


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Pass the loop's lag in seconds to `observe` at every interval. Never returns."""
    while True:
        due = time.perf_counter() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        observe(max(0.0, time.perf_counter() - due))
