"""A simulation of one server that answers single texts: cores, processes and the batching rule.

The API process, the balancer and the clients are event loops: each does one thing at a time. They
share the cores with the predictors, whose weight is lower, as the kernel's scheduler divides them
(`nice`). Batches are made as in app/paddlepool/engine/queue: free predictors divide the waiting
texts; a busy one gets only a full batch in advance.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

MAX_ROWS = 8
"""`max_batch_size` of the emotion model."""

WEIGHTS = (1024, 110)
"""Of the kernel's scheduler, for nice 0 and for the predictors' nice 10."""
NORMAL, LOW = 0, 1

WARM_UP, END = 0.7, 1.7
"""Simulated seconds of the part that counts."""

API_PROCESS = "the API process"
"""A part that limits a server."""

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Processor seconds of a process for each text and for each run."""

    text: float
    run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a text costs; `balancer` is for each text, `message` the delay of each message.

    `used` is the share of the cores that is used while more processes are ready than there are
    cores: the kernel moves no process to a core that will be idle for only a moment.
    """

    api: PartCosts
    predictor: PartCosts
    client: PartCosts
    balancer: float
    message: float
    used: float = 1.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Texts a second, rows of a run, and the busy share of each part."""

    per_second: float
    rows: float
    api: float
    predictors: float
    cores: float

    @property
    def limit(self) -> str:
        if self.api > 0.95:
            return API_PROCESS
        return "the cores" if self.cores > 0.75 else "the delay of messages"


class Cores:
    """Processors that work of two weights shares; delays need no processor."""

    def __init__(self, number: int, *, used: float = 1.0, others: float = 0.0) -> None:
        """`used` is that of Costs; other programs use the share `others` of the cores."""
        self.now = 0.0
        self.seconds = 0.0
        self._number, self._used, self._others = number, used, others
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Action]] = []
        # By weight: the work under way, by the amount of service at which it ends.
        self._work: tuple[list[tuple[float, int, Action]], ...] = ([], [])
        self._service = [0.0, 0.0]

    def after(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._order), action))

    def work(self, weight: int, seconds: float, action: Action) -> None:
        """Call `action` when this work has had `seconds` of a core."""
        entry = (self._service[weight] + seconds, next(self._order), action)
        heapq.heappush(self._work[weight], entry)

    def _rates(self) -> tuple[float, float]:
        """Share of a core that each piece of work of each weight gets."""
        normal, low = map(len, self._work)
        capacity = self._number * (1 - self._others)
        if normal + low > self._number:
            capacity *= self._used
        if normal + low <= capacity:
            return 1.0, 1.0
        weighed = normal * WEIGHTS[NORMAL] + low * WEIGHTS[LOW]
        if (most := capacity * WEIGHTS[NORMAL] / weighed) < 1:
            return most, capacity * WEIGHTS[LOW] / weighed
        return 1.0, (capacity - normal) / low

    def run(self, until: float) -> None:
        while True:
            rates = self._rates()
            due = [
                (self.now + (self._work[w][0][0] - self._service[w]) / rates[w], self._work[w])
                for w in (NORMAL, LOW)
                if self._work[w]
            ]
            if self._timers:
                due.append((self._timers[0][0], self._timers))
            if not due:
                return
            when, queue = min(due, key=lambda entry: entry[0])
            if when > until:
                return
            elapsed, self.now = when - self.now, when
            for weight in (NORMAL, LOW):
                self._service[weight] += elapsed * rates[weight]
                self.seconds += elapsed * rates[weight] * len(self._work[weight])
            heapq.heappop(queue)[2]()


@dataclass(eq=False)
class EventLoop:
    """A process that does one thing at a time, in rounds, as asyncio does.

    A round does first what the round before has put off, then what has arrived by its beginning.
    """

    cores: Cores
    busy_seconds: float = 0.0
    _arrived: list[tuple[float, Action]] = field(default_factory=list)
    _soon: list[tuple[float, Action]] = field(default_factory=list)
    _round: deque[tuple[float, Action]] = field(default_factory=deque)
    _working: bool = False

    def receive(self, seconds: float, action: Action) -> None:
        """Spend the seconds on a message that arrives now, then call `action`."""
        self._arrived.append((seconds, action))
        if not self._working:
            self._next()

    def soon(self, seconds: float, action: Action) -> None:
        """Put off work to the next round."""
        self._soon.append((seconds, action))

    def at_once(self, seconds: float, action: Action) -> None:
        """Go on with this work before anything else."""
        self._round.appendleft((seconds, action))

    def _next(self) -> None:
        if not self._round:
            self._round.extend((*self._soon, *self._arrived))
            self._soon.clear()
            self._arrived.clear()
        self._working = bool(self._round)
        if self._working:
            seconds, action = self._round.popleft()
            self.busy_seconds += seconds
            self.cores.work(NORMAL, seconds, partial(self._done, action))

    def _done(self, action: Action) -> None:
        action()
        self._next()


@dataclass(eq=False)
class Predictor:
    """A process with the rows of the runs that it has received; the first is under way.

    `assigned` counts them and those that are still being sent.
    """

    received: deque[int] = field(default_factory=deque)
    assigned: int = 0


@dataclass(eq=False, kw_only=True)
class SimulatedServer:
    """The API process with its queue, and its predictors. `reply` is called for each text."""

    cores: Cores
    costs: Costs
    predictors: int
    reply: Action

    def __post_init__(self) -> None:
        self.api = EventLoop(self.cores)
        self.rows = self.runs = self.replies = 0
        self.predictor_seconds = 0.0
        self._waiting = 0
        self._collecting = False
        self._free = [Predictor() for _ in range(self.predictors)]
        self._everyone = tuple(self._free)

    def submit(self) -> None:
        """Receive a text: a quarter of its cost is parsing, one preparing, and half the reply."""
        prepare = partial(self.api.soon, self.costs.api.text / 4, self._queue)
        self.api.receive(self.costs.api.text / 4, prepare)

    def _queue(self) -> None:
        self._waiting += 1
        if not self._collecting:  # texts that have arrived together share runs
            self._collecting = True
            self.api.soon(0.0, self._dispatch)

    def _dispatch(self) -> None:
        self._collecting = False
        while self._waiting and (self._free or self._waiting >= MAX_ROWS):
            full_runs = -(-self._waiting // MAX_ROWS)
            rows = min(MAX_ROWS, -(-self._waiting // max(len(self._free), full_runs)))
            predictor = self._free.pop() if self._free else self._with_room()
            if predictor is None:
                return
            self._waiting -= rows
            predictor.assigned += 1
            self.api.at_once(self.costs.api.run / 2, partial(self._send, predictor, rows))

    def _with_room(self) -> Predictor | None:
        return next((one for one in self._everyone if one.assigned == 1), None)

    def _send(self, predictor: Predictor, rows: int) -> None:
        self.cores.after(self.costs.message, partial(self._arrive, predictor, rows))

    def _arrive(self, predictor: Predictor, rows: int) -> None:
        predictor.received.append(rows)
        if len(predictor.received) == 1:
            self._run(predictor)

    def _run(self, predictor: Predictor) -> None:
        seconds = self.costs.predictor.run + predictor.received[0] * self.costs.predictor.text
        self.predictor_seconds += seconds
        self.cores.work(LOW, seconds, partial(self._ran, predictor))

    def _ran(self, predictor: Predictor) -> None:
        rows = predictor.received.popleft()
        self.runs, self.rows = self.runs + 1, self.rows + rows
        if predictor.received:
            self._run(predictor)
        self.cores.after(self.costs.message, partial(self._receive, predictor, rows))

    def _receive(self, predictor: Predictor, rows: int) -> None:
        self.api.receive(self.costs.api.run / 2, partial(self._complete, predictor, rows))

    def _complete(self, predictor: Predictor, rows: int) -> None:
        predictor.assigned -= 1
        if not predictor.assigned:
            self._free.append(predictor)
        self._dispatch()
        for _ in range(rows):
            self.api.soon(self.costs.api.text / 2, self._reply)

    def _reply(self) -> None:
        self.replies += 1
        self.reply()


def simulate(
    costs: Costs,
    *,
    cores: int,
    predictors: int,
    clients: int,
    balanced: bool = False,
    clients_share_cores: bool = False,
    others: float = 0.0,
) -> Simulated:
    """Simulate clients that each send a text when the last one is answered.

    Their own processor time is spent on the same cores only if `clients_share_cores`. Other
    programs use the share `others` of the cores. With `balanced`, a thread of the balancer passes
    every text and every reply, on the same cores.
    """
    shared = Cores(cores, used=costs.used, others=max(0.0, others))
    client, proxy = EventLoop(shared), EventLoop(shared)

    def passed(action: Action) -> Action:
        if not balanced:
            return action
        return partial(proxy.receive, costs.balancer / 2, action)

    def send() -> None:
        shared.after(costs.message, passed(lambda: server.submit()))

    def received() -> None:
        if clients_share_cores:
            # A client wakes up for all replies of a run together.
            share = costs.client.text + costs.client.run * server.runs / max(1, server.rows)
            client.receive(share, send)
        else:
            send()

    server = SimulatedServer(
        cores=shared,
        costs=costs,
        predictors=predictors,
        reply=lambda: shared.after(costs.message, passed(received)),
    )
    for _ in range(clients):
        send()
    shared.run(WARM_UP)

    def totals() -> tuple[float, ...]:
        busy = server.api.busy_seconds, server.predictor_seconds, shared.seconds
        return server.replies, server.rows, server.runs, *busy

    before = totals()
    shared.run(END)
    seconds = END - WARM_UP
    replies, rows, runs, api, predicting, busy = (
        (now - then) / seconds for now, then in zip(totals(), before, strict=True)
    )
    return Simulated(
        per_second=replies,
        rows=rows / max(1.0, runs),
        api=api,
        predictors=predicting / predictors,
        cores=busy / cores,
    )
