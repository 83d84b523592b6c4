"""Every fuzz target, with the files that fuzzers have kept and with mutants of sound bytes."""

import random
from collections.abc import Callable

import pytest

from tests.fuzz.run import FOUND, KEPT, NAMES
from tests.fuzz.targets import TARGETS

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


def check(target: Callable[[bytes], None], data: bytes, name: str) -> None:
    """Run the target; an error says which bytes these are."""
    try:
        target(data)
    except BaseException as fault:
        fault.add_note(f"{name}: {data[:200]!r}")
        raise


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzers_found_is_refused_as_documented(name: str) -> None:
    files = [*(KEPT / name).glob("*"), *(FOUND / name).glob("*")]
    assert files, f"there is no file for {name}"
    for file in sorted(files):
        check(TARGETS[name][0], file.read_bytes(), str(file))


def test_every_target_is_fuzzed() -> None:
    """The runner knows their names before it loads them: what it instruments must be new to it."""
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize("mutants", [250, pytest.param(4_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_refused_as_documented(name: str, mutants: int) -> None:
    """They are the same in every run."""
    target, seeds = TARGETS[name]
    chance = random.Random(name)
    bodies = seeds()
    for number, body in enumerate(bodies):
        check(target, body, f"seed {number}")
    for number in range(mutants):
        check(target, mutant(bodies[number % len(bodies)], chance), f"mutant {number}")
