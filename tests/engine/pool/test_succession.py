"""When a worker's memory is looked at."""

from typing import Any
from unittest.mock import Mock

from paddlepool.engine.pool.succession import POLL_SECONDS, Succession


def test_short_runs_share_a_look_at_the_memory() -> None:
    now = 0.0
    worker = Mock(**{"resident_bytes.return_value": 1})

    async def unopened() -> Any:
        raise AssertionError("its memory is within the cap")

    succession = Succession("w", unopened, smallest_cap=1 << 30, clock=lambda: now)
    succession.reset(worker)
    worker.resident_bytes.reset_mock()
    for _ in range(10):
        succession.check(worker)
    assert worker.resident_bytes.call_count == 1
    now = 1.01 * POLL_SECONDS
    succession.check(worker)
    assert worker.resident_bytes.call_count == 2
