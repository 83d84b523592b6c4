"""When a worker's memory is looked at."""

from app.contracts.ports import Worker
from app.engine.pool.succession import POLL_SECONDS, Succession


class Counting:
    """A worker that counts how often it is asked for its memory."""

    def __init__(self) -> None:
        self.looks = 0

    def resident_bytes(self) -> int:
        self.looks += 1
        return 1


def test_short_runs_share_a_look_at_the_memory() -> None:
    """The first run of a worker is looked at, and then one in POLL_SECONDS."""
    now = 0.0
    worker = Counting()

    async def unopened() -> Worker[object, object]:
        raise AssertionError("its memory is within the cap")

    succession: Succession[object, object] = Succession(
        "w", unopened, smallest_cap=1 << 30, clock=lambda: now
    )
    succession.began(worker)  # type: ignore[arg-type]  # all that is asked of it
    began = worker.looks
    for _ in range(10):
        succession.watch(worker)  # type: ignore[arg-type]
    assert worker.looks == began + 1
    now = 1.01 * POLL_SECONDS
    succession.watch(worker)  # type: ignore[arg-type]
    assert worker.looks == began + 2
