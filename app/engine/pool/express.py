"""The queue of a group as its express instance sees it."""

from __future__ import annotations

from app.engine.queue.batcher import Batcher


class ExpressLane:
    """A batcher that gives out only what would wait behind another caller's flood.

    Nothing ahead of its time: there is nothing to be gained by it. Nor does admission count with
    this instance, which not every job may use.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.take = batcher.take_express
        self.finished = batcher.finished
        self.give_back = batcher.give_back
        self.divide = batcher.divide

    @property
    def closed(self) -> bool:
        return self._batcher.closed

    def take_prefetch(self) -> None:
        return None

    def add_live(self, _change: int) -> None:
        return None


Lane = Batcher | ExpressLane
