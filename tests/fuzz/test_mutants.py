"""Mutants of sound bytes, the same at every run, for each fuzz target."""

import random

import pytest
from hostile_pictures import mutant

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("mutants", [250, pytest.param(4_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_refused_as_documented(name: str, mutants: int) -> None:
    target, corpus = TARGETS[name]
    chance = random.Random(name)
    bodies = corpus()
    for body in bodies:
        target(body)
    for number in range(mutants):
        body = mutant(bodies[number % len(bodies)], chance)
        try:
            target(body)
        except BaseException as fault:
            fault.add_note(f"mutant {number}: {body[:200]!r}")
            raise
