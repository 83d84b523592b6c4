"""Paddle imported quietly before any test of the export is collected."""

import tests.quiet_paddle  # noqa: F401
