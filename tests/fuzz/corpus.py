"""The bytes that fuzzers have found worth keeping, a file each."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "corpus"
"""Committed. A directory for each target; what broke one lies there, too, as `crash-…`."""
FOUND = ROOT / "runs" / "fuzz"
"""What runs on this machine have found; not committed."""

Arc = tuple[str, int, int]


def files(target: str) -> list[Path]:
    """All there are for one target."""
    return [
        file
        for directory in (KEPT / target, FOUND / target)
        if directory.is_dir()
        for file in sorted(directory.iterdir())
    ]


def keep(target: str, run: Callable[[bytes], None], *, most_bytes: int) -> int:
    """Copy the smallest files of FOUND that reach what no kept one does; returns how many."""
    reached: set[Arc] = set()
    kept, added = KEPT / target, 0
    kept.mkdir(parents=True, exist_ok=True)
    for file in sorted(kept.iterdir()):
        reached |= arcs(run, file.read_bytes())
    found = FOUND / target
    for file in sorted(found.iterdir(), key=lambda each: (each.stat().st_size, each.name)):
        data = file.read_bytes()
        if len(data) <= most_bytes and not (here := arcs(run, data)) <= reached:
            reached |= here
            (kept / file.name).write_bytes(data)
            added += 1
    return added


def arcs(run: Callable[[bytes], None], data: bytes) -> set[Arc]:
    """Which lines of ours follow which in this run: file, from, to."""
    seen: set[Arc] = set()

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(f"{ROOT / 'app'}/"):
            return None
        last = 0

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "line":
                seen.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        run(data)
    finally:
        sys.settrace(None)
    return seen
