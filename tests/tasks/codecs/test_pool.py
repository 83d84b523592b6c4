"""Codec processes: what a crash, a hang, an explosion and a cancelled call cost, and who pays."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
import time
import weakref
import zlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    ImageUnreadable,
    InvalidParameter,
    Overloaded,
    WorkerCrashed,
)
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.process.child import Child
from paddlepool.engine.process.replies import Reply
from paddlepool.tasks.codecs.limits import HEIC_DECODER, PictureLimits, allow_pixels, time_limit
from paddlepool.tasks.codecs.picture import PictureStore
from paddlepool.tasks.codecs.pool import MEMORY_LIMIT, CodecPool
from tests.descriptors import open_descriptors
from tests.engine.fakes import Sleeper, eventually, no_collections, soon
from tests.engine.process.kernel import live_pids
from tests.ran import ran
from tests.tasks.codecs.heic_samples import PLAIN
from tests.tasks.codecs.pictures import chunk, encoded, padded_png, photo

pytestmark = [  # real processes, some of them hung on purpose
    pytest.mark.slow,
    pytest.mark.usefixtures("hangups_count"),
]

FAULTS = "tests.tasks.codecs.faults"


class Pool:
    """A pool of one process with short limits, and the reasons for which it was replaced."""

    def __init__(self, **options: object) -> None:
        self.reasons: list[str] = []
        settings = {"count": 1, "wall_seconds": 1.5, "on_restart": self.reasons.append} | options
        self.pool = CodecPool(**settings)  # type: ignore[arg-type]
        self.pool.start()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()

    def call(self, function: str, meta: Any = None, **options: Any) -> asyncio.Future[Reply]:
        """Call a function of FAULTS, or "module:name"."""
        name = function if ":" in function else f"{FAULTS}:{function}"
        settings: dict[str, Any] = {"deadline": soon(), "crash_error": ImageUnreadable} | options
        return self.pool.submit(name, meta or {}, **settings)

    def pids(self) -> list[int]:
        return live_pids(self.pool)

    async def echo(self) -> Reply:
        return await self.call("echo")


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Pool]:
    async with Pool() as pool:
        yield pool


@pytest.fixture
async def one(shared: Pool) -> Pool:
    """The pool of the module, with a process in it and no past."""
    await shared.echo()
    shared.reasons.clear()
    return shared


KINDS: dict[str, dict[str, Any]] = {
    "JPEG": {}, "PNG": {}, "WEBP": {"lossless": True}, "GIF": {}, "BMP": {}, "AVIF": {},
    "TIFF": {"compression": "tiff_lzw"},
}  # fmt: skip


async def test_every_format_decodes_in_a_confined_process(one: Pool) -> None:
    """What a decoder needs of the system is not among what a codec process may not do."""
    bodies = {kind: encoded(photo(), kind, **options) for kind, options in KINDS.items()}
    if find_spec(HEIC_DECODER):
        bodies["HEIC"] = PLAIN
    for kind, body in bodies.items():
        arrays = {"body": np.frombuffer(body, np.uint8)}
        assert (await one.call("decoded", arrays=arrays)).arrays["pixels"].ndim == 3, kind
    assert not one.reasons


async def test_a_picture_may_take_as_long_as_its_size_allows(one: Pool) -> None:
    """4,000 colour profiles of a small PNG take seconds; their process is ended."""
    profile = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000), 9))
    body = np.frombuffer(padded_png(profile * 4_000), np.uint8)
    late = one.call("decoded", {"limits": {"seconds": 1.0}}, arrays={"body": body})
    with pytest.raises(ImageUnreadable, match="longer than the limit for its size"):
        await late
    await one.echo()
    assert one.reasons == ["timeout"]


def test_a_large_picture_has_more_time() -> None:
    """In proportion to the pixels, with two fifths for the smallest."""
    limits = PictureLimits(pixels=1_000, seconds=100.0)
    for pixels, seconds in ((1, 40.0), (400, 40.0), (700, 70.0), (1_000, 100.0)):
        with time_limit(limits):
            allow_pixels(pixels, limits)
            assert signal.getitimer(signal.ITIMER_PROF)[0] == pytest.approx(seconds, abs=1.0)
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


class Gate:
    """Keeps a codec process busy until it is opened."""

    def __init__(self, directory: Path) -> None:
        self.began, self.gate = directory / "began", directory / "gate"

    async def hold(self, pool: Pool, **options: object) -> asyncio.Future[Reply]:
        opened = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (self.began, self.gate)]
        try:
            future = pool.call("hold", descriptors=opened, **options)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        await eventually(lambda: self.began.stat().st_size > 0)
        return future

    def open(self) -> None:
        self.gate.write_bytes(b"open")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


class Openings:
    """Stands for `Child` where the pool opens processes: the first so many open at once, the others
    when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at_once: int) -> None:
        self._places = threading.Semaphore(at_once)
        monkeypatch.setattr("paddlepool.tasks.codecs.pool.Child", self)

    def __call__(self, *arguments: Any, **options: Any) -> Child:
        assert self._places.acquire(timeout=60)
        return Child(*arguments, **options)

    def let(self) -> None:
        self._places.release(100)

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        self.let()


def alive(pid: int) -> bool:
    """Whether the process exists, if only as a zombie."""
    return Path(f"/proc/{pid}").exists()


def end_idle(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the pool was there first
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_descriptors_are_the_callers_to_close_at_once(one: Pool) -> None:
    """The call keeps its own duplicate: closing the original while it waits does not matter."""
    read, write = os.pipe()
    future = one.call("echo", descriptors=(write,))
    os.close(write)
    await future
    assert os.read(read, 100) == b"written by the child"
    assert os.read(read, 100) == b""  # nobody holds the writing end any more
    os.close(read)


async def test_descriptors_that_cannot_all_be_had_are_all_given_back() -> None:
    """The first is not lost when the second fails; the caller's own stay its own."""
    own = os.open("/dev/null", os.O_RDONLY)
    try:
        pool = CodecPool(count=1)
        before = open_descriptors()
        with pytest.raises(OSError, match="Bad file descriptor"):
            pool.submit("module:name", {}, descriptors=(own, -1), deadline=1e9)
        assert open_descriptors() == before
    finally:
        os.close(own)


@pytest.mark.parametrize(
    ("function", "reason"),
    [("crash", "crashed"), ("hang", "timeout"), ("block", "timeout"), ("explode", "memory")],
)
async def test_a_fatal_picture_is_the_pictures_fault_and_the_process_is_replaced(
    one: Pool, function: str, reason: str
) -> None:
    """A crash, both kinds of a hang and a memory bomb become ImageUnreadable; the next call is
    served."""
    before = (await one.echo()).meta["pid"]
    with pytest.raises(ImageUnreadable):
        await one.call(function)
    assert (await one.echo()).meta["pid"] != before
    assert one.reasons == [reason]


async def test_a_busy_machine_is_not_the_pictures_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the others leave no processor has its time when it gets one, up to the
    deadline of its request."""
    monkeypatch.setattr(Child, "cpu_seconds", lambda child: 0.0)
    async with Pool(wall_seconds=0.3) as pool:
        await pool.call("spin", {"seconds": 1.0})
        late = pool.call("spin", {"seconds": 60.0}, deadline=time.monotonic() + 0.5)
        with pytest.raises(DeadlineExceeded):
            await late


@pytest.mark.parametrize("function", ["echo", "refuse"])
async def test_what_a_call_was_given_goes_with_it(one: Pool, function: str) -> None:
    """It does not wait for the garbage collector, also where the call failed."""
    array = np.ones((64, 64), np.float32)
    watched = weakref.ref(array)
    with no_collections():
        future = one.call(function, arrays={"x": array})
        await asyncio.wait([future])
        assert (future.exception() is None) == (function == "echo")
        del array, future
        await eventually(lambda: watched() is None)


async def test_a_signal_to_the_whole_process_group_ends_no_process(one: Pool) -> None:
    pid = (await one.echo()).meta["pid"]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert (await one.echo()).meta["pid"] == pid


@pytest.mark.parametrize(
    ("sent", "reason"), [(signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")], ids=str
)
async def test_a_process_killed_or_stopped_over_a_picture_costs_it_nothing(
    gate: Gate, sent: signal.Signals, reason: str
) -> None:
    """The system takes one when memory runs out: the call is run again, from its beginning.

    A stopped process is noticed after about a second, long before the wall limit.
    """
    before = len(open_descriptors())
    async with Pool(wall_seconds=60.0) as pool:
        held = await gate.hold(pool)
        [pid] = pool.pids()
        os.kill(pid, sent)
        gate.open()
        assert (await held).meta["pid"] != pid
        assert pool.reasons == [reason]
    assert len(open_descriptors()) == before


async def test_a_picture_whose_processes_are_killed_twice_is_not_to_blame() -> None:
    """Nor is it tried for ever: 503, with a time to come back."""
    async with Pool(wall_seconds=60.0) as pool:
        with pytest.raises(Overloaded, match="killed two processes") as caught:
            await pool.call("end", {"signal": signal.SIGKILL})
        assert caught.value.retry_after > 0
        await pool.echo()
        assert pool.reasons == ["killed", "killed"]


@pytest.mark.parametrize("attack", ["negative offset", "objects", "half a message", "garbage"])
async def test_an_answer_that_is_none_is_not_the_pictures_fault(one: Pool, attack: str) -> None:
    """A codec process that is not ours any more costs its call, and is replaced."""
    with pytest.raises(WorkerCrashed):
        await one.call("tests.engine.process.hostile:attack", {"attack": attack})
    assert (await one.echo()).meta["meta"] == {}
    assert one.reasons == ["corrupt"]


async def test_a_pictures_memory_cannot_be_spoiled(one: Pool) -> None:
    """Neither its size nor what may be done with it changes, whatever holds it has run."""
    with PictureStore(budget=1 << 20).open(1 << 16) as picture:
        reply = await one.call("spoil", descriptors=(picture.descriptor,))
        assert reply.meta["done"] == []
        assert os.fstat(picture.descriptor).st_size == 1 << 16
        assert os.pread(picture.descriptor, 6, 0) == b"pixels"


@pytest.mark.parametrize("refuse", [False, True])
async def test_a_process_that_keeps_pictures_is_ended(one: Pool, refuse: bool) -> None:
    """Their memory would live for as long as it does: one error, and the next call is answered."""
    with PictureStore(budget=1 << 20).open(1 << 16) as picture, pytest.raises(WorkerCrashed):
        await one.call("keep", {"copies": 1, "refuse": refuse}, descriptors=(picture.descriptor,))
    await one.echo()
    assert one.reasons == ["corrupt"]


@pytest.mark.parametrize("dead", [0, 1], ids=["first", "second"])
async def test_a_call_does_not_wait_for_a_dead_process_beside_an_idle_one(
    monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    """Of two idle processes one has died, which the event loop could not yet see: the other
    answers, long before that one is replaced."""
    openings = Openings(monkeypatch, at_once=2)
    async with Pool(count=2) as pool, openings:
        await pool.pool.opened()

        end_idle(sorted(pool.pids())[dead])
        await asyncio.wait_for(pool.call("echo"), 5)


async def test_a_process_that_died_while_idle_is_soon_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody need call: within a second it is missing from the live ones and replaced."""
    openings = Openings(monkeypatch, at_once=2)
    async with Pool(count=2) as pool, openings:
        await pool.pool.opened()
        end_idle(dead := min(pool.pids()))
        sleeper = Sleeper(began := time.monotonic())
        await eventually(lambda: pool.pool.live == 1, patience=5.0)
        assert time.monotonic() - began < 1.0 + await asyncio.to_thread(sleeper.late)
        assert len(pool.pids()) == 1
        assert not alive(dead), "a zombie"
        openings.let()
        await eventually(lambda: pool.pool.live == 2)


async def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system may have had none to give for a moment; the call waits."""
    attempts = []

    def start(*arguments: Any, **options: Any) -> Child:
        attempts.append(1)
        if len(attempts) == 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return Child(*arguments, **options)

    monkeypatch.setattr("paddlepool.tasks.codecs.pool.Child", start)
    async with Pool() as pool:
        await pool.echo()
        assert (len(attempts), pool.reasons) == (2, [])


def test_processes_that_die_at_their_start_are_tried_ever_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that dies over a picture is replaced at once."""
    instances: list[dict[str, Any]] = []

    def instance(**options: Any) -> None:
        instances.append(options)

    monkeypatch.setattr("paddlepool.tasks.codecs.pool.Instance", instance)
    CodecPool(count=1).start()
    [lost] = [options["on_loss"] for options in instances]
    delays = [lost(Restart.FAILED) for _ in range(9)]
    assert delays == sorted(delays)
    assert delays[-1] >= 10.0
    assert lost(Restart.CRASHED) == 0.0


LIMITED = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_AS, (1400 << 20, 1400 << 20))
resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, 100 << 20))
from tests.tasks.codecs.test_pool import Pool
async def main():
    async with Pool() as pool:
        print((await pool.echo()).meta)
asyncio.run(main())
"""


def test_a_lower_limit_of_the_system_is_kept() -> None:
    """`ulimit -v` or `-f` below a codec's own limit: no process may raise it."""
    assert "pid" in ran([sys.executable, "-c", LIMITED]).stdout


async def test_what_a_function_refuses_comes_back_as_it_was_raised(one: Pool) -> None:
    """Domain errors cross the process with their numbers and do not cost the process."""
    with pytest.raises(InvalidParameter) as caught:
        await one.call("refuse")
    assert (caught.value.limit, caught.value.received) == (3, 4)
    assert not one.reasons


async def test_an_unknown_function_is_an_installation_error(one: Pool) -> None:
    """Any exception that is not ours becomes BackendError; its text stays in the log."""
    with pytest.raises(BackendError):
        await one.call("no_such_function")


async def test_a_full_queue_refuses_and_urgent_work_passes(gate: Gate) -> None:
    """The n-th waiting call is taken, the next refused at once with a time to come back."""
    async with Pool(queue_size=2, wall_seconds=60.0) as pool:
        await pool.echo()
        await gate.hold(pool)
        waiting = [pool.call("echo") for _ in range(2)]
        started = time.monotonic()
        with pytest.raises(Overloaded) as caught:
            pool.call("echo")
        assert time.monotonic() - started < 5.0, "it waited for a place"
        assert (caught.value.limit, caught.value.received) == (2, 3)
        assert caught.value.retry_after > 0
        order: list[str] = []
        waiting[0].add_done_callback(lambda _: order.append("ordinary"))
        urgent = pool.call("echo", urgent=True)
        urgent.add_done_callback(lambda _: order.append("urgent"))
        gate.open()
        for future in (*waiting, urgent):
            await future
        assert order == ["urgent", "ordinary"]


async def test_cancelling_frees_the_place_in_the_queue_and_its_descriptors(gate: Gate) -> None:
    """A client who left takes no place, and nothing of his stays open."""
    async with Pool(queue_size=1, wall_seconds=60.0) as pool:
        held = await gate.hold(pool)
        before = len(open_descriptors())
        abandoned = pool.call("echo", descriptors=(0, 1, 2))
        assert len(open_descriptors()) == before + 3
        assert abandoned.cancel()
        await eventually(lambda: len(open_descriptors()) == before)
        successor = pool.call("echo")
        gate.open()
        await held
        await successor


async def test_who_leaves_a_running_call_costs_nobody_a_process(gate: Gate) -> None:
    """It runs to its end, and its result is dropped; descriptors are closed at once."""
    async with Pool(wall_seconds=60.0) as pool:
        pid = (await pool.echo()).meta["pid"]
        before = len(open_descriptors())
        assert (await gate.hold(pool)).cancel()
        await eventually(lambda: len(open_descriptors()) == before)
        waiting = pool.call("echo")
        gate.open()
        assert (await waiting).meta["pid"] == pid


async def test_a_short_deadline_kills_no_process_until_two_seconds_later() -> None:
    """A client's short deadline must not be a way to make the server start processes."""
    async with Pool(wall_seconds=30.0) as pool:
        await pool.echo()
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await pool.call("hang", deadline=started + 0.5)
        await eventually(lambda: pool.reasons == ["timeout"])
        assert 2.4 < time.monotonic() - started < 15.0


async def test_a_process_has_its_limits(one: Pool) -> None:
    """1.5 GiB of address space, no core files, no shared file above 512 MiB."""
    limits = (await one.call("limits")).meta
    assert limits == {"RLIMIT_AS": MEMORY_LIMIT, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 512 << 20}


async def test_closing_fails_what_waits_and_leaves_nothing_open(gate: Gate) -> None:
    """After close: waiting calls failed, processes gone, no descriptor left."""
    before = len(open_descriptors())
    async with Pool(wall_seconds=60.0) as pool:
        running = await gate.hold(pool)
        waiting = pool.call("echo", descriptors=(0,))
        [pid] = pool.pids()
        await pool.pool.close()
        with pytest.raises(Overloaded):
            await waiting
        with pytest.raises(Overloaded):
            await running
        assert not alive(pid)
        with pytest.raises(Overloaded):
            pool.call("echo")
    assert len(open_descriptors()) == before


async def test_a_warm_up_runs_in_each_process_before_its_first_call() -> None:
    """Also in a replacement. One that fails is not the end of the process."""
    async with Pool(warm_ups=[f"{FAULTS}:refuse", f"{FAULTS}:warm_up"]) as pool:
        for _ in range(2):
            assert (await pool.call("warmed")).meta == {"times": 1}
            with pytest.raises(ImageUnreadable):
                await pool.call("crash")
