"""The error that ends a command with one line on standard error."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot do what it was asked for; the message is written for its user."""
