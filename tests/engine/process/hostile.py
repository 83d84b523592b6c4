"""A child process that is not ours any more: it answers its first call as a child does, and then
what its name says."""

import fcntl
import json
import os
import socket
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from paddlepool.engine.process.start import SEALS
from tests.descriptors import open_descriptors

Handler = Callable[..., tuple[Mapping[str, Any], Mapping[str, Any]]]


def reply(layout: object, seconds: object = 0.0) -> bytes:
    return json.dumps({"meta": {}, "arrays": layout, "seconds": seconds}).encode()


MESSAGES: dict[str, Sequence[bytes]] = {
    "negative offset": [reply([["x", "<f4", [4], -4096]])],
    "offset beyond": [reply([["x", "<f4", [4], 1 << 40]])],
    "a byte beyond": [reply([["x", "|u1", [4096], 1]])],
    "objects": [reply([["x", "|O", [4], 0]])],
    "text": [reply([["x", "<U4", [4], 0]])],
    "unknown dtype": [reply([["x", "nonsense", [4], 0]])],
    "huge shape": [reply([["x", "<f4", [1 << 40, 1 << 40], 0]])],
    "empty and huge": [reply([["x", "<f4", [0, 1 << 62, 1 << 62], 0]])],
    "negative shape": [reply([["x", "<f4", [-4, -4], 0]])],
    "a hundred axes": [reply([["x", "<f4", [1] * 100, 0]])],
    "shape of fractions": [reply([["x", "<f4", [1.5], 0]])],
    "layout of words": [reply("nothing")],
    "endless seconds": [reply([], seconds=float("inf"))],
    "nothing": [b""],
    "half a message": [reply([])[:9]],
    "garbage": [bytes(range(256)) * 8],
    "deep": [b"[" * 100_000],
    "long number": [b'{"meta": ' + b"9" * 100_000 + b"}"],
    "error without words": [b'{"error": {"kind": "InputError"}}'],
    "flood": [reply([])] * 300,
    "nothing unasked": [reply([]), b""],
    "ages": [reply([], seconds=1e300)],
}
"""What such a child sends. Arrays are asked from a block that has a page."""


def open_hostile(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Target of a child; `opening["attack"]` is a name of MESSAGES, or one of the attacks below."""
    wire = socket.socket(fileno=os.dup(_wire()))
    return {}, partial(_attack, opening["attack"], wire)


def attack(meta: Mapping[str, Any], *_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The same in a codec process, as a function that it calls."""
    with socket.socket(fileno=os.dup(_wire())) as wire:
        return _attack(str(meta["attack"]), wire)


WRONG: dict[str, Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "another output": lambda y: ({}, {"1": y}),
    "wider numbers": lambda y: ({}, {"0": y.astype("<f8")}),
    "a number": lambda y: ({}, {"0": y[0, 0]}),
    "five rows for one": lambda y: ({}, {"0": y.repeat(5, axis=0)}),
    "another width": lambda y: ({}, {"0": y[:, :1]}),
    "values beside": lambda y: ({"x": 1}, {"0": y}),
}
"""Answers as they can be, that this model never gives; its output has as many columns as `x`."""
UNEXPECTED = ("a number", "five rows for one", "another width")
"""Those that only a manifest contradicts."""


def open_turning_predictor(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Target of a predictor: y = 2 x until it is given a number of WRONG, from 2000 on."""

    def handle(
        _meta: object, arrays: Mapping[str, Any], _descriptors: object
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        for number, wrong in enumerate(WRONG.values(), 2000):
            if (arrays["x"] == number).any():
                return wrong(2 * arrays["x"])
        return {}, {"0": 2 * arrays["x"]}

    return {}, handle


def _attack(
    name: str, wire: socket.socket, *_: object
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if name == "short file":
        _shorten(wire)
    for block in _blocks():
        os.ftruncate(block, max(4096, os.fstat(block).st_size))
    if name == "hang up":
        wire.shutdown(socket.SHUT_RDWR)
    if name == "read nothing":
        _read_nothing(wire)
    for message in MESSAGES.get(name, ()):
        wire.send(message)
    time.sleep(60)
    raise AssertionError("it was not ended")


def _read_nothing(wire: socket.socket) -> None:
    """Answer each request without taking it from the socket."""
    completed, waiting = -1, 0
    while True:
        if waiting > completed:
            wire.send(reply([]))
            completed = waiting
        waiting = int.from_bytes(fcntl.ioctl(wire, termios.FIONREAD, bytes(4)), sys.byteorder)


def _shorten(wire: socket.socket) -> None:
    """Take the pages away that were promised, over and over while they are copied."""
    blocks = _blocks()
    for block in blocks:
        os.ftruncate(block, 256 << 20)
    wire.send(reply([["x", "|u1", [256 << 20], 0]]))
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for block in blocks:
            for size in (0, 256 << 20):
                try:
                    os.ftruncate(block, size)
                except PermissionError:
                    assert SEALS
    os._exit(3)


def _wire() -> int:
    return min(_descriptors("socket:"))


def _blocks() -> list[int]:
    return _descriptors("/memfd:replies")


def _descriptors(target: str) -> list[int]:
    return [int(number) for number, opened in open_descriptors() if opened.startswith(target)]
