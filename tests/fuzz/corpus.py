"""The bytes that fuzzers have found worth keeping, a file each."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "corpus"
"""Committed. A directory for each target; what broke one lies there, too, as `crash-…`."""
FOUND = ROOT / "runs" / "fuzz"
"""What runs on this machine have found; not committed."""


def files(target: str) -> list[Path]:
    """All there are for one target."""
    return [
        file
        for directory in (KEPT / target, FOUND / target)
        if directory.is_dir()
        for file in sorted(directory.iterdir())
    ]
