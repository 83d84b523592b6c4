"""`paddlepool serve` with one more task, added as the documentation says: by one line."""

from __future__ import annotations

from app.pipelines import PIPELINES
from tests.e2e.altered import main

if __name__ == "__main__":
    PIPELINES["slow"] = "tests.e2e.slow_task"
    main()
