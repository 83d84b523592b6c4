"""Paddle imported quietly before any test of the export is collected."""

from tests.quiet_paddle import paddle

__all__ = ["paddle"]
