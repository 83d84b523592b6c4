"""Mutations of valid bytes."""

from __future__ import annotations

import random

WORDS = (b"\xff", b"\0", b"\xff\xda", b"\xff\xff\xff\xff", b"\x7f\xff", b"-1", b"1e999", b"[", b'"')


def mutant(body: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut or duplicate a piece, or insert a keyword, up to four times."""
    mutated = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        end = min(len(mutated), at + chance.randint(1, 16))
        match chance.randrange(4):
            case 0 if at < len(mutated):
                mutated[at] ^= 1 << chance.randrange(8)
            case 1:
                del mutated[at:end]
            case 2:
                mutated[at:at] = mutated[at:end]
            case _:
                word = chance.choice(WORDS)
                mutated[at : at + len(word)] = word
    return bytes(mutated)
