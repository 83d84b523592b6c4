"""`paddlepool serve`: the HTTP server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EXIT_BAD_CONFIGURATION = 3


SWITCH_SECONDS = 0.0005


def configure(parser: argparse.ArgumentParser) -> None:
    """Options win over the environment; every other setting is in docs/configuration.md."""
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", help="port to listen on, 0 for a free one")
    parser.add_argument(
        "--model-repository", type=Path, metavar="DIR", help="directory of the models"
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Exit codes: 0 drained, 1 second signal, 3 bad configuration."""
    import gc
    import logging
    import os

    from pydantic import ValidationError

    from app.api.services import Lifecycle
    from app.contracts.errors import ConfigError
    from app.main import create_app
    from app.observability import json_log
    from app.server import run as server
    from app.settings import Settings, explain, unknown_variables

    names = ("host", "port", "model_repository", "log_level")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        return _refuse(explain(error))
    json_log.configure(settings.log_level)
    for name in unknown_variables(os.environ):
        logging.getLogger("paddlepool.server").warning("%s is not a setting", name)
    lifecycle = Lifecycle()
    try:
        # The address first: no process is started for a port that is taken.
        listener = server.listen(settings.host, settings.port, backlog=settings.backlog)
    except OSError as error:
        return _refuse(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    try:
        app = create_app(settings, lifecycle=lifecycle)
    except ConfigError as error:
        return _refuse(error.message)
    # What was imported and built by now stays. Looking through it for garbage would stop every
    # request for 60 ms now and then, and a reload makes enough objects to start that.
    gc.freeze()
    # A request crosses threads four times. Each time it would wait five milliseconds for a thread
    # that has more to compute, as one that loads a model has.
    sys.setswitchinterval(SWITCH_SECONDS)
    server.run(app, settings, listener=listener, on_drain=lifecycle.drain)


def _refuse(reason: str) -> int:
    print(f"paddlepool serve: {reason}", file=sys.stderr)
    return EXIT_BAD_CONFIGURATION
