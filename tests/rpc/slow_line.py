"""A line to a server that carries replies slowly, and keeps nothing itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PIECE_BYTES = 16_384


class SlowLine:
    """One connection to `port` at a time; `self.port` is the near end."""

    def __init__(self, port: int, *, bytes_a_second: int) -> None:
        self._target = port
        self._seconds = PIECE_BYTES / bytes_a_second
        self._listener = _small(socket.socket())
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._carry, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _carry(self) -> None:
        with contextlib.suppress(OSError):  # closed
            near, _ = self._listener.accept()
            with near, _small(socket.socket()) as far:
                far.connect(("127.0.0.1", self._target))
                there = threading.Thread(target=_pump, args=(near, far, 0.0))
                there.start()
                _pump(far, near, self._seconds)
                there.join()


def _small(end: socket.socket) -> socket.socket:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    return end


def _pump(source: socket.socket, target: socket.socket, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            target.sendall(data)
            time.sleep(seconds * len(data) / PIECE_BYTES)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
