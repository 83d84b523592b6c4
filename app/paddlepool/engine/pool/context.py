"""What the instance groups of one registry share: processor time, memory, observers, back-off."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from paddlepool.contracts.errors import Overloaded
from paddlepool.contracts.ports import AgreementOf, Clock, EngineObserver, PredictorFactory
from paddlepool.contracts.resources import available_cores
from paddlepool.engine.process.suspension import Suspension


class StartedGroup(Protocol):
    """What OnDemand needs of an instance group."""

    def idle(self) -> bool: ...

    def resident_bytes(self) -> int: ...

    def stop(self) -> None: ...


class OnDemand:
    """Limits the groups that start on demand; at a limit, stops the least recently used idle one.

    Default groups are not counted. At most `limit` groups are started at a time. No further group
    starts while the started ones hold `max_bytes` or more of resident memory. Belongs to the event
    loop.
    """

    def __init__(self, limit: float = math.inf, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._started: list[StartedGroup] = []  # least recently used first

    def use(self, group: StartedGroup) -> None:
        """Mark a group as used now; call it before each job of the group.

        If the group was not started, idle others are stopped until the limits allow it, the least
        recently used first. Raises Overloaded if too few are idle.
        """
        if group in self._started:
            self._started.remove(group)
        else:
            while reason := self._full():
                unused = next((other for other in self._started if other.idle()), None)
                if unused is None:
                    raise reason
                self._started.remove(unused)
                unused.stop()
        self._started.append(group)

    def _full(self) -> Overloaded | None:
        if len(self._started) >= self._limit:
            return Overloaded(
                f"{self._limit} instance groups that start on demand are running, "
                "which is the limit",
                limit=self._limit,
                received=self._limit + 1,
            )
        resident = sum(group.resident_bytes() for group in self._started)
        if resident < self._max_bytes:
            return None
        return Overloaded(
            f"the running instance groups that start on demand hold {resident} bytes; "
            f"no other starts from {self._max_bytes} bytes on",
            limit=self._max_bytes,
            received=resident,
        )

    def forget(self, group: StartedGroup) -> None:
        """Stop counting a group that was stopped or cannot start."""
        if group in self._started:
            self._started.remove(group)


SLICE_SECONDS, PAUSE_SECONDS = 0.04, 0.04
"""While serving predictors need the cores, a predictor that is being opened runs for SLICE_SECONDS
and pauses for PAUSE_SECONDS, in turns. With half of a core, it is ready in seconds even if the
server is never idle."""


class Yielding:
    """Suspends predictors during their opening while serving predictors need the cores.

    Such predictors are opened with this object's `suspension`. A lower priority would not do: a
    process that has lowered its priority cannot raise it again to serve. Nor can a separate thread
    of lower priority do the warm-up, because oneDNN prepares each shape for each thread.
    """

    def __init__(self, cores: float | None = None) -> None:
        self.suspension = Suspension(slice_seconds=SLICE_SECONDS, pause_seconds=PAUSE_SECONDS)
        # Opening needs two free cores: one for itself, and one for everything else.
        self._limit = max(1.0, (available_cores() if cores is None else cores) - 1)
        self._busy = 0

    def serving(self, threads: int) -> None:
        """Add `threads`, which may be negative, to the number of threads that run requests.

        Openings are suspended while there are such threads and they leave at most one core free.
        """
        self._busy += threads
        crowded = self._busy >= self._limit
        if crowded and not self.suspension.held:
            self.suspension.hold()
        elif not crowded and self.suspension.held:
            self.suspension.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What all groups of a registry share.

    A predictor process is replaced by a fresh one if its resident memory is more than
    `max_resident_bytes` and more than 1.5 times what it was at first. A group that starts on demand
    is stopped when it is idle and was not used for `on_demand_idle_seconds`. `on_demand` limits
    these groups, and `yielding` suspends openings in favour of requests.
    """

    open_predictor: PredictorFactory
    observer: EngineObserver
    clock: Clock = time.monotonic
    max_resident_bytes: int = 2 << 30
    agreement_of: AgreementOf = lambda _info: None
    yielding: Yielding = field(default_factory=Yielding)
    on_demand: OnDemand = field(default_factory=OnDemand)
    on_demand_idle_seconds: float = math.inf


WINDOW_SECONDS = 60.0
MAX_LOSSES = 5
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds to wait after the first, second, … loss within WINDOW_SECONDS. The last one repeats."""
LACKING_SECONDS = 1.0
"""The delay while the system lacks resources for a process; they may be available again soon."""


class RestartBackoff:
    """Counts lost workers and failed openings; more than 5 in a minute are a crash loop.

    They are those of an instance group or of the codec pool.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._losses: deque[float] = deque(maxlen=len(DELAYS))

    def delay_after_loss(self) -> float:
        """Count a loss or failed opening; return the seconds to wait before the next opening."""
        self._losses.append(self._clock())
        return DELAYS[self._losses_in_window() - 1]

    def in_crash_loop(self) -> bool:
        return self._losses_in_window() > MAX_LOSSES

    def _losses_in_window(self) -> int:
        oldest = self._clock() - WINDOW_SECONDS
        return sum(time > oldest for time in tuple(self._losses))
