"""`paddlepool serve` with one more backend: Paddle Inference that opens when a file is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.backends import BACKENDS, paddle_inference
from app.backends.handler import Handler
from tests.e2e.altered import main


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Waits for the file that the option `gate` names."""
    while not Path(opening["options"]["gate"]).exists():
        time.sleep(0.01)
    return paddle_inference.open_predictor({**opening, "options": {}})


if __name__ == "__main__":
    BACKENDS["gated"] = "tests.e2e.gated_server:open_predictor"
    main()
