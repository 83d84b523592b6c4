"""`paddlepool serve` with one more task, added as the documentation says: by one line."""

from __future__ import annotations

import argparse
import sys

from app.commands import serve
from app.pipelines import PIPELINES

if __name__ == "__main__":
    PIPELINES["slow"] = "tests.e2e.slow_task"
    parser = argparse.ArgumentParser()
    command = parser.add_subparsers(required=True).add_parser("serve")
    serve.configure(command)
    sys.exit(serve.run(parser.parse_args()))
