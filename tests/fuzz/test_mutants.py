"""A few thousand mutants of sound bytes, the same at every run, for each fuzz target."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.targets import TARGETS

MUTANTS = 4_000
WORDS = (b"\xff", b"\0", b"\xff\xda", b"\xff\xff\xff\xff", b"\x7f\xff", b"-1", b"1e999", b"[", b'"')


def mutant(body: bytes, chance: random.Random) -> bytes:
    """Up to four times a bit turned, a piece cut out or doubled, or a telling word put in."""
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


@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_refused_as_documented(name: str) -> None:
    """Whatever the bytes are, nothing is raised but what the caller expects."""
    target, corpus = TARGETS[name]
    chance = random.Random(name)
    bodies = corpus()
    for body in bodies:
        target(body)
    for number in range(MUTANTS):
        body = mutant(bodies[number % len(bodies)], chance)
        try:
            target(body)
        except BaseException as fault:
            fault.add_note(f"mutant {number}: {body[:200]!r}")
            raise
