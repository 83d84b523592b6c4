"""`paddlepool serve` with one more task and three more backends: Paddle Inference that waits, and
one that fails."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    PIPELINES["slow"] = "tests.e2e.slow_task"
    for name in ("paced", "gated", "failing"):
        BACKENDS[name] = f"tests.e2e.altered_server:{name}"
    sys.exit(main(sys.argv[1:]))
