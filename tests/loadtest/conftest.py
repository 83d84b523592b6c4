"""Benchmarks as modules: some bring Paddle in when they are imported."""

import tests.quiet_paddle  # noqa: F401
