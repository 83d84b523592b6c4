"""What `paddlepool export` offers, written out there so that `--help` need not import Paddle."""

from __future__ import annotations

import pytest

from app.commands.export import NETWORKS
from app.commands.export import ORIGINS as OFFERED
from app.export.manifest import ORIGINS
from app.networks import NAMES


@pytest.mark.paddle
def test_the_choices_are_those_of_the_exporter() -> None:
    """Every network that can be built and every origin that a manifest may name, and no other."""
    assert NETWORKS == NAMES
    assert OFFERED == ORIGINS
