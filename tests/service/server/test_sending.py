"""Clients that do not take their replies."""

import errno
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from paddlepool.service.server.sending import STALLED_BYTES, StallWatch, UnreadReplies

STALL_SECONDS = 30.0


class Client:
    """`left` bytes of its reply are not taken."""

    def __init__(self, unread: UnreadReplies, left: int) -> None:
        self.left = left
        self.cut = False
        self.loop = Mock()
        self.watch = StallWatch(self, self.loop, unread)  # type: ignore[arg-type]
        self.watch.start()

    def get_write_buffer_size(self) -> int:
        return self.left

    def get_extra_info(self, _: str) -> Any:
        return SimpleNamespace(fileno=lambda: -1)

    def abort(self) -> None:
        self.cut = True


@pytest.fixture(autouse=True)
def _nothing_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddlepool.service.server.sending.fcntl.ioctl", lambda *_: bytes(4))


def test_the_connection_with_the_largest_unread_reply_is_closed() -> None:
    """A reply counts whole until it is taken; once one is gone there is room again."""
    unread = UnreadReplies(100_000_000, stall_seconds=STALL_SECONDS)
    clients = [Client(unread, size) for size in (40_000_000, 45_000_000)]
    clients[1].left -= 20_000_000
    clients.append(Client(unread, 15_000_001))
    assert [connected.cut for connected in clients] == [False, True, False]
    clients.append(Client(unread, 44_999_999))
    assert [connected.cut for connected in clients] == [False, True, False, False]


def test_a_connection_that_is_just_closed_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> bytes:
        raise OSError(errno.EBADF, "closed")

    monkeypatch.setattr("paddlepool.service.server.sending.fcntl.ioctl", closed)
    unread = UnreadReplies(1_000_000, stall_seconds=STALL_SECONDS)
    first, second = (Client(unread, 600_000) for _ in range(2))
    assert [first.cut, second.cut].count(True) == 1


def test_a_client_that_takes_less_than_it_must_is_cut_off() -> None:
    """One that takes just as much is not."""
    unread = UnreadReplies(100_000_000, stall_seconds=STALL_SECONDS)
    slow, stalled = (Client(unread, 1_000_000) for _ in range(2))
    slow.left -= STALLED_BYTES
    stalled.left -= STALLED_BYTES - 1
    for client in (slow, stalled):
        seconds, check = client.loop.call_later.call_args.args
        assert seconds == STALL_SECONDS
        check()
    assert (slow.cut, stalled.cut) == (False, True)
