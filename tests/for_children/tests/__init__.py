"""The package `tests` for confined children, which cannot list the checkout that holds it."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2])]
