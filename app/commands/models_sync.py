"""`paddlepool models sync`: copies a model repository from elsewhere, verified."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from app.commands.repository import add_repository_option, repository_root

if TYPE_CHECKING:
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]


def add_sync(actions: Actions) -> None:
    sync = actions.add_parser(
        "sync", help="copy models from s3://, gs://, hf:// or a directory, and verify them"
    )
    sync.add_argument("address", metavar="ADDRESS", help="holds MODEL/config.toml, MODEL/VERSION/…")
    sync.add_argument(
        "--end-with-input",
        action="store_true",
        help="end when standard input does: for programs that start this one",
    )
    add_repository_option(sync)


def run_sync(args: argparse.Namespace) -> int:
    """Exit code 0 also when single versions are refused: they are named and not served."""
    from app.sources.remote import Source
    from app.sources.sync import lines_of, sync

    # As an exception, so that what is half copied is removed.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if args.end_with_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    changes = sync(Source(args.address), repository_root(args.repository))
    for line in lines_of(changes):
        print(line)
    return 0


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # In the main thread, which may hang in a call that only a signal of its own interrupts.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
