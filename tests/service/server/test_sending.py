"""Clients that do not take their replies."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from app.service.server.sending import STALLED_BYTES, StallWatch, UnreadReplies

STALL_SECONDS = 30.0


class Loop:
    """Its time is set; what is to be called later is in `later`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Any) -> Any:
        self.later.append(call)
        return SimpleNamespace(cancel=lambda: None)


class Client:
    """`left` bytes of its reply are not taken."""

    def __init__(self, unread: UnreadReplies, loop: Loop, left: int) -> None:
        self.left = left
        self.cut = False
        self.watch = StallWatch(self, loop, unread)  # type: ignore[arg-type]
        self.watch.start()

    def get_write_buffer_size(self) -> int:
        return self.left

    def get_extra_info(self, _: str) -> Any:
        return SimpleNamespace(fileno=lambda: -1)

    def abort(self) -> None:
        self.cut = True


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr("app.service.server.sending.fcntl.ioctl", lambda *_: bytes(4))
    return Loop()


def test_the_connection_with_the_largest_unread_reply_is_closed(loop: Loop) -> None:
    """A reply counts whole until it is taken; once one is gone there is room again."""
    unread = UnreadReplies(100_000_000, stall_seconds=STALL_SECONDS)
    clients = [Client(unread, loop, size) for size in (40_000_000, 45_000_000)]
    clients[1].left -= 20_000_000
    clients.append(Client(unread, loop, 15_000_001))
    assert [each.cut for each in clients] == [False, True, False]
    clients.append(Client(unread, loop, 44_999_999))
    assert [each.cut for each in clients] == [False, True, False, False]


def test_a_connection_that_is_just_closed_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> bytes:
        raise OSError(errno.EBADF, "closed")

    monkeypatch.setattr("app.service.server.sending.fcntl.ioctl", closed)
    unread, loop = UnreadReplies(1_000_000, stall_seconds=STALL_SECONDS), Loop()
    first, second = (Client(unread, loop, 600_000) for _ in range(2))
    assert [first.cut, second.cut].count(True) == 1


def test_a_client_that_takes_less_than_it_must_is_cut_off(loop: Loop) -> None:
    """One that takes just as much is not."""
    unread = UnreadReplies(100_000_000, stall_seconds=STALL_SECONDS)
    slow, stalled = (Client(unread, loop, 1_000_000) for _ in range(2))
    loop.now = STALL_SECONDS
    slow.left -= STALLED_BYTES
    stalled.left -= STALLED_BYTES - 1
    for check in loop.later[:2]:
        check()
    assert (slow.cut, stalled.cut) == (False, True)
