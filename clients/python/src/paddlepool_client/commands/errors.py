"""The error that ends a command with one line on stderr."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot run as requested; the message is for its user."""
