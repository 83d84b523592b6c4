"""How a command ends: an error with one line on stderr, or Ctrl-C."""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code that a shell reports for a program ended by SIGINT."""


class CommandError(Exception):
    """The command cannot run as requested; the message is for its user."""
