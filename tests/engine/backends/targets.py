"""Targets of child processes for tests: quick to start, and able to fail in every way."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.handler import Handler, checked_options, serve

CRASH, HANG, REFUSE, STOP, SPIN = 13.0, 14.0, 15.0, 16.0, 17.0
"""Values in `x` that make a predictor crash, wait for ever, raise, stop itself, or work 20 ms."""


def open_double(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """y = 2 x."""
    options = checked_options(
        "double", opening["options"], {"refuse": False, "raise": False, "die": False, "errno": 0}
    )
    if options["errno"]:
        raise OSError(options["errno"], os.strerror(options["errno"]))
    if options["refuse"]:
        raise BackendError("this model is refused")
    if options["raise"]:
        raise RuntimeError(f"{opening['directory']}/no operator foo\n")
    if options["die"]:
        os.kill(os.getpid(), signal.SIGSEGV)

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        x = inputs["x"]
        if (x == CRASH).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        if (x == HANG).any():
            threading.Event().wait()
        if (x == STOP).any():
            os.kill(os.getpid(), signal.SIGSTOP)
        if (x == REFUSE).any():
            raise ValueError(f"the framework\nread {opening['directory']}/{opening['program']}")
        if (x == SPIN).any():
            threading.Event().wait(0.02)
        return [2 * x]  # type: ignore[operator]

    return {}, serve(run)


def open_priorities(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Output the niceness at opening and in a run; has a second thread, like a framework."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    opened = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def run(_inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        running = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return [np.array([[opened, running]], np.float32)]

    return {}, serve(run)
