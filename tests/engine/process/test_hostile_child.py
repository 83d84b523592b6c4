"""Whatever a child process answers, its parent lives, and the child does not."""

import contextlib
import json
import os
import select
import time

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError, InputError, PaddlepoolError
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.process.child import Child, ChildDied
from paddlepool.engine.process.replies import parse_message
from paddlepool.engine.process.shared_arrays import SharedArrays
from paddlepool.service.api.errors import fault_of
from tests.engine.fakes import wait_until
from tests.engine.process.hostile import MESSAGES

pytestmark = pytest.mark.slow  # real processes

UNASKED = ("flood", "nothing unasked")


def hostile(attack: str) -> Child:
    return Child("tests.engine.process.hostile:open_hostile", {"attack": attack})


@pytest.mark.parametrize("name", [name for name in MESSAGES if name not in (*UNASKED, "ages")])
def test_an_answer_that_is_none_is_refused(name: str) -> None:
    """Offsets, dtypes, shapes, JSON: nothing is read by them."""
    with contextlib.closing(SharedArrays.create("block")) as block:
        block.write({"x": np.zeros(4096, np.uint8)})
        with pytest.raises(ValueError, match=r"\w"):
            block.read(parse_message(MESSAGES[name][0]).layout)  # type: ignore[union-attr]


@pytest.mark.parametrize("attack", ["negative offset", "garbage", "nothing", "hang up"])
def test_an_answer_that_is_none_ends_the_child(
    attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(hostile(attack)) as child:
        child.put({"x": np.zeros(4, np.float32)})
        child.send({})
        with pytest.raises(ChildDied) as caught:
            child.receive(timeout=20.0)
        assert caught.value.reason is Restart.CORRUPT
        assert ("invalid answer" in caplog.text) is (attack != "hang up")
        wait_until(lambda: child.failure() is Restart.KILLED)


@pytest.mark.parametrize("attack", UNASKED)
def test_answers_that_nobody_asked_for_are_answers_to_nobody(attack: str) -> None:
    """The next request would be given them: a stranger's reply."""
    with contextlib.closing(hostile(attack)) as child:
        child.call({}, timeout=20.0)
        assert select.select([child], [], [], 20.0)[0]
        with pytest.raises(ChildDied) as caught:
            child.send({})
        assert caught.value.reason is Restart.CORRUPT
        wait_until(lambda: child.failure() is Restart.KILLED)


def test_a_child_that_reads_nothing_holds_nobody_up() -> None:
    """Its requests fill the socket: one that waited there would hold up the whole event loop."""

    def ask(child: Child) -> None:
        for _ in range(100):
            child.call({"padding": "x" * 10_000}, timeout=20.0)

    with contextlib.closing(hostile("read nothing")) as child:
        with pytest.raises(ChildDied) as caught:
            ask(child)
        assert caught.value.reason is Restart.CORRUPT


def test_a_file_cannot_be_shortened_while_it_is_copied() -> None:
    """That would end the parent with SIGBUS."""
    with contextlib.closing(hostile("short file")) as child:
        array = child.call({}, timeout=20.0).arrays["x"]
        assert array.nbytes == 256 << 20


def test_seconds_are_never_more_than_have_passed() -> None:
    """Admission counts with them: it would refuse every later request."""
    with contextlib.closing(hostile("ages")) as child:
        began = time.monotonic()
        reply = child.call({}, timeout=20.0)
        assert reply.seconds <= time.monotonic() - began


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        ({"kind": "ImageUnreadable", "message": "x", "limit": 3}, InputError),
        ({"kind": "ImageUnreadable", "message": "x", "limit": float("nan")}, InputError),
        ({"kind": "annotations", "message": "x"}, BackendError),
        ({"kind": "Self", "message": "x"}, BackendError),
        ({"kind": "__builtins__", "message": "x"}, BackendError),
        ({"kind": "Overloaded", "message": "x"}, BackendError),
        ({"kind": "InputError", "message": "x"}, BackendError),
        ({"kind": "Unauthorized", "message": "x"}, BackendError),
        ({"kind": "ModelNotFound", "message": "x"}, BackendError),
        ({"errno": 24}, OSError),
    ],
)
def test_an_error_is_one_of_ours(described: dict[str, object], kind: type[Exception]) -> None:
    """Whatever name the child gives; each has a reply over HTTP, and a message has an end."""
    error = parse_message(json.dumps({"error": described}).encode(), opening=True)
    assert isinstance(error, kind)
    if isinstance(error, PaddlepoolError):
        fault_of(error)
        assert error.limit in (3, None)
    long = parse_message(
        json.dumps({"error": {"kind": "ImageUnreadable", "message": "x" * 9999}}).encode()
    )
    assert len(str(long)) == 1000


def test_only_opening_may_find_that_the_system_has_nothing_to_give() -> None:
    """It is tried again then; of a call it would be the child's word for anything."""
    with pytest.raises(ValueError, match="an error must have a kind and a message"):
        parse_message(b'{"error": {"errno": 24}}')


def test_a_large_block_gives_its_memory_back_and_keeps_its_size() -> None:
    """It is sealed against shrinking; what it held is gone all the same."""
    with contextlib.closing(SharedArrays.create("block")) as block:
        array = np.arange(40 << 20, dtype=np.uint8)
        layout = block.write({"x": array})
        assert np.array_equal(block.read(layout)["x"], array)
        block.trim()
        assert os.fstat(block.descriptor).st_blocks == 0
        with pytest.raises(PermissionError):
            os.ftruncate(block.descriptor, 0)
        layout = block.write({"x": array})
        assert np.array_equal(block.read(layout)["x"], array)


def test_what_the_other_side_has_grown_is_given_back_too() -> None:
    """Though this side has never written, nor read, beyond a few bytes of it."""
    with contextlib.closing(SharedArrays.create("block")) as block:
        block.write({"x": np.zeros(1, np.uint8)})
        os.posix_fallocate(block.descriptor, 0, 40 << 20)
        block.trim()
        assert os.fstat(block.descriptor).st_blocks == 0


def test_more_than_half_a_gigabyte_is_not_written() -> None:
    """Nor would it be read."""
    with contextlib.closing(SharedArrays.create("block")) as block:
        huge = np.broadcast_to(np.uint8(0), ((512 << 20) + 1,))
        with pytest.raises(ValueError, match="limit 536870912"):
            block.write({"x": huge})
