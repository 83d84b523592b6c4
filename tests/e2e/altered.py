"""What the modules that alter `paddlepool serve` for a test end with."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from app.commands import serve


def main() -> NoReturn:
    """`paddlepool serve` with whatever has been put into the tables before."""
    parser = argparse.ArgumentParser()
    command = parser.add_subparsers(required=True).add_parser("serve")
    serve.configure(command)
    sys.exit(serve.run(parser.parse_args()))
