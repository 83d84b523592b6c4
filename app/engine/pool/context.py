"""What the instance groups of one registry share: processor time, memory, and who watches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from app.contracts.errors import Overloaded
from app.contracts.ports import AgreementOf, Clock, EngineObserver, PredictorFactory
from app.contracts.resources import available_cores
from app.engine.process.suspension import Suspension


class Startable(Protocol):
    def idle(self) -> bool:
        """Whether no request waits or runs, so that it may be stopped."""

    def resident_bytes(self) -> int:
        """Resident memory of its processes."""

    def stop(self) -> None:
        """End its processes, without waiting for them; its next job starts it again."""


class OnDemand:
    """At either limit the group that was not used for the longest makes room.

    No further group is started while those that live hold `max_bytes` or more of resident memory;
    what a group will hold is not known before it runs.
    """

    def __init__(self, limit: float = math.inf, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._started: list[Startable] = []  # the last one was used last

    def use(self, group: Startable) -> None:
        """To be called before each job. Raises Overloaded when all the others are at work."""
        if group in self._started:
            self._started.remove(group)
        else:
            self._make_room()
        self._started.append(group)

    def _make_room(self) -> None:
        """For one more group."""
        while reason := self._full():
            unused = next((other for other in self._started if other.idle()), None)
            if unused is None:
                raise reason
            self._started.remove(unused)
            unused.stop()

    def _full(self) -> Overloaded | None:
        if len(self._started) >= self._limit:
            return Overloaded(
                f"{self._limit} instance groups that start on demand are at work, "
                "as many as may at a time",
                retry_after=1.0,
                limit=self._limit,
                received=self._limit + 1,
            )
        held = sum(group.resident_bytes() for group in self._started)
        if held < self._max_bytes:
            return None
        return Overloaded(
            f"the instance groups that start on demand and are at work hold {held} bytes, "
            f"no other starts from {self._max_bytes} on",
            retry_after=1.0,
            limit=self._max_bytes,
            received=held,
        )

    def forget(self, group: Startable) -> None:
        """It has no processes any more."""
        if group in self._started:
            self._started.remove(group)


SLICE_SECONDS = 0.01
"""What a predictor that is being opened gets of every tenth of a second in any case: a server that
is never idle can be reloaded, too."""


class Yielding:
    """Predictors are opened with its `suspension`; those that serve say when they are at work.

    Priorities alone would not do: a process that has lowered its own cannot raise it again, and
    oneDNN prepares a shape for each thread anew, so that no other thread can warm one up.
    """

    def __init__(self, cores: float | None = None) -> None:
        self.suspension = Suspension(slice_seconds=SLICE_SECONDS)
        # One core for what is opened, and one for all that is neither of the two.
        self._limit = max(1.0, (available_cores() if cores is None else cores) - 1)
        self._busy = 0

    def serving(self, threads: int) -> None:
        """So many threads begin to work for users; a negative number ends it."""
        self._busy += threads
        crowded = self._busy >= self._limit
        if crowded and not self.suspension.held:
            self.suspension.hold()
        elif not crowded and self.suspension.held:
            self.suspension.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What every group of a registry shares."""

    open_predictor: PredictorFactory
    observer: EngineObserver
    clock: Clock
    max_resident_bytes: int
    agreement_of: AgreementOf = lambda _info: None
    yielding: Yielding = field(default_factory=Yielding)
    on_demand: OnDemand = field(default_factory=OnDemand)
