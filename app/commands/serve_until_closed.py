"""The server of a command that runs without one: it ends when its standard input does, and so with
whoever started it, however that ended."""

from __future__ import annotations

import argparse
import os
import sys
import threading

from app.commands import serve


def main() -> int:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    threading.Thread(target=_end_with_input, daemon=True).start()
    return serve.run(parser.parse_args())


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # its child processes end when their pipes close


if __name__ == "__main__":
    sys.exit(main())
