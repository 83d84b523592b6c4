"""A few thousand mutants of sound bytes, the same at every run, for each fuzz target."""

import random

import pytest
from mutants import mutant

from tests.fuzz.targets import TARGETS

MUTANTS = 2_000


@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_refused_as_documented(name: str) -> None:
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
