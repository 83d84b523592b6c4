"""`paddlepool serve` with one more task and four more backends: Paddle Inference that waits,
fails, or gives wrong outputs."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.cli import main
from paddlepool.engine.backends import BACKENDS, paddle_inference
from paddlepool.engine.backends.handler import Handler
from paddlepool.tasks import PIPELINES


def paced(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Each run is longer by the seconds that the option `pause` names."""
    ready, run = paddle_inference.open_predictor({**opening, "options": {}})
    pause = float(opening["options"]["pause"])

    def paced_run(*arguments: Any) -> Any:
        time.sleep(pause)
        return run(*arguments)

    return ready, paced_run


def gated(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Waits for the file that the option `gate` names."""
    while not Path(opening["options"]["gate"]).exists():
        time.sleep(0.01)
    return paddle_inference.open_predictor({**opening, "options": {}})


def failing(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Prints, and fails, in each run on an image that is nine pixels wide."""
    ready, run = paddle_inference.open_predictor({**opening, "options": {}})

    def failing_run(meta: Any, arrays: Any, descriptors: Any) -> Any:
        if arrays["image"].shape[3] == 9:
            print("as a framework does", file=sys.stderr, flush=True)
            raise ValueError
        return run(meta, arrays, descriptors)

    return ready, failing_run


def faulty(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """After its self-test, has the fault that the hidden file `.fault` of its version names."""
    ready, run = paddle_inference.open_predictor({**opening, "options": {}})
    file = Path(opening["directory"], ".fault")
    fault = file.read_text("utf-8") if file.exists() else ""
    runs = 0

    def faulty_run(meta: Any, arrays: Any, descriptors: Any) -> Any:
        nonlocal runs
        began = time.perf_counter()
        if fault == "crashes" and arrays["image"].shape[3] > 20:
            os._exit(1)
        reply, outputs = run(meta, arrays, descriptors)
        runs += 1
        if fault == "slow":
            time.sleep(0.002 + 2 * (time.perf_counter() - began))
        if runs > 1 and fault in FAULTS and (fault != "nan" or runs % 50 == 0):
            outputs = {name: FAULTS[fault](array) for name, array in outputs.items()}
        return reply, outputs

    return ready, faulty_run


FAULTS: dict[str, Callable[[Any], Any]] = {
    "swapped": lambda array: array[:, ::-1].copy(),
    "rounded": lambda array: array.round(1),
    "nan": lambda array: array * np.float32("nan"),
}


if __name__ == "__main__":
    PIPELINES["slow"] = "tests.e2e.slow_task"
    for name in ("paced", "gated", "failing", "faulty"):
        BACKENDS[name] = f"tests.e2e.altered_server:{name}"
    sys.exit(main(sys.argv[1:]))
