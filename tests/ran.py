"""Programs that run beside a test, and what is waited for."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

needs_converter = pytest.mark.skipif(
    find_spec("paddle2onnx") is None,
    reason="NOT TESTED: paddle2onnx is not installed; it has no wheel for Python 3.13",
)


def ran(
    command: Sequence[object], *, check: bool = True, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A program that was started in the checkout and has ended, with 0 unless `check` is False."""
    words, cwd = [str(word) for word in command], options.pop("cwd", ROOT)
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, timeout=timeout, check=False, **options
    )
    assert not (check and done.returncode), f"{done.stdout}\n{done.stderr}"
    return done


def wait_until(
    condition: Callable[[], bool], *, patience: float = 120.0, every: float = 0.02
) -> None:
    """For what becomes true in another thread or process without an event to wait for."""
    give_up = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        time.sleep(every)


async def eventually(condition: Callable[[], bool], *, patience: float = 120.0) -> None:
    """Like wait_until(), on an event loop, which runs on meanwhile."""
    give_up = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        await asyncio.sleep(0.005)
