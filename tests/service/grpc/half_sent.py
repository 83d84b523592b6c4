"""A client of HTTP/2 that begins a call's message, sends as much of it as it may, and ends none."""

import contextlib
import socket
import struct

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES = 16_384
CALL = 1
"""The stream's number."""


class HalfSent:
    """`taken` are the bytes that the server had room for."""

    def __init__(self, port: int, path: str, *, message_bytes: int) -> None:
        self.taken = 0
        self._left = b"\0" + struct.pack(">I", message_bytes) + bytes(message_bytes - 1)
        self._windows = {0: 65_535, CALL: 65_535}
        self._received = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(0.05)
        self._socket.sendall(GREETING)
        self._send(SETTINGS, 0, b"")
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        self._send(HEADERS, CALL, b"".join(map(_field, fields, fields.values())), END_HEADERS)

    def close(self) -> None:
        self._socket.close()

    def go_on(self) -> None:
        """Send what there is room for, then read what has come."""
        while (size := min(FRAME_BYTES, len(self._left), *self._windows.values())) > 0:
            part, self._left = self._left[:size], self._left[size:]
            self._send(DATA, CALL, part)
            self.taken += size
            for stream in self._windows:
                self._windows[stream] -= size
        with contextlib.suppress(TimeoutError):
            self._received += self._socket.recv(65_536)
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                break
            head, body = self._received[3:9], self._received[9 : 9 + size]
            self._received = self._received[9 + size :]
            self._answer(head[0], head[1], int.from_bytes(head[2:], "big"), body)

    def _answer(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(body, "big")
        elif kind == PING and not flags & ACK:
            self._send(PING, 0, body, ACK)
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                name, value = struct.unpack(">HI", body[at : at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    self._windows[CALL] += value - 65_535
            self._send(SETTINGS, 0, b"", ACK)

    def _send(self, kind: int, stream: int, body: bytes, flags: int = 0) -> None:
        head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self._socket.sendall(head + body)


def _field(name: str, value: str) -> bytes:
    """As HPACK writes it without its tables."""
    return b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))
