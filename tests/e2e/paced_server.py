"""`paddlepool serve` with one more backend: Paddle Inference that takes as long as told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app.backends import BACKENDS, paddle_inference
from app.backends.handler import Handler
from tests.e2e.altered import main


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Each run is longer by the seconds that the option `pause` names."""
    ready, run = paddle_inference.open_predictor({**opening, "options": {}})
    pause = float(opening["options"]["pause"])

    def paced(*arguments: Any) -> Any:
        time.sleep(pause)
        return run(*arguments)

    return ready, paced


if __name__ == "__main__":
    BACKENDS["paced"] = "tests.e2e.paced_server:open_predictor"
    main()
