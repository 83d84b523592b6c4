"""Where the networks' fixtures are. Paddle is imported quietly, before anything else does it."""

from pathlib import Path

import tests.quiet_paddle  # noqa: F401

FIXTURES = Path(__file__).parent / "fixtures"
