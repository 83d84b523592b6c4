"""Every fuzz target, with the files that fuzzers have kept and with mutants of sound bytes."""

import random
from collections.abc import Callable

import pytest
from hostile_pictures import mutant

from tests.fuzz.run import FOUND, KEPT, NAMES
from tests.fuzz.targets import TARGETS


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
