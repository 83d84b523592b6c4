"""What `paddlepool export` offers is what the exporter takes."""

from __future__ import annotations

import argparse

import claim_tables
import pytest

from app.commands.export import configure
from app.export import config_text
from app.export.publish import ORIGINS
from app.networks import NAMES
from app.pipelines.sentiment import parameters


@pytest.mark.paddle
def test_the_choices_are_those_of_the_exporter() -> None:
    """Every network that can be built and every origin that a manifest may name, and no other."""
    parser = argparse.ArgumentParser()
    configure(parser)
    choices = {action.dest: action.choices for action in parser._actions}
    assert choices["network"] == NAMES
    assert choices["origin"] == ORIGINS


def test_the_length_buckets_are_the_same_wherever_they_are_written() -> None:
    """What is exported and what is measured is what a model without buckets of its own gets."""
    assert config_text.BUCKETS == parameters.BUCKETS
    served = tuple(length for length in parameters.BUCKETS if length <= claim_tables.PADDED)
    assert served == claim_tables.BUCKETS
