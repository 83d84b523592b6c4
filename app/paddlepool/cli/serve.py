"""`paddlepool serve`: the HTTP server."""

import argparse
import contextlib
import gc
import logging
import math
import os
import shlex
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.resources import available_cores, use_one_heap
from paddlepool.engine.process.start import Spares
from paddlepool.observability import log
from paddlepool.tasks.codecs import program

EXIT_BAD_CONFIGURATION = 3

COLLECTED_OBJECTS = 20_000
"""New objects after which Python's garbage collector scans the young ones. A scan of 160 requests
in progress takes up to 40 ms in which none is answered, and finds nothing, because requests leave
no cycles."""

CODEC_PROCESSES = 2
"""Codec processes that are started before the settings are read: their default number."""
SPARE_PREDICTORS = 4
"""Maximum of the predictor processes that are started then: those of no use take memory and time
until the models have been loaded."""
STATE_FILE = "PADDLEPOOL_STATE_FILE"

SWITCH_SECONDS = 0.0005
"""Python's thread switch interval. Threads copy large bodies and tokenise long texts. With the
default of 0.005 seconds, the event loop would wait that long for such a thread."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", help="port to listen on, 0 for a free one")
    parser.add_argument(
        "--model-repository",
        "--repository",
        type=Path,
        metavar="DIR",
        help="directory of the models; default: ./model_repo if it exists, otherwise one below"
        " the user's data directory, which the first start fills",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, then drain and exit.

    Exit codes: 0 after draining, 1 if a second signal arrived first, 3 after a ConfigError.
    """
    _replace_closed_streams()
    gc.disable()  # collections would take a tenth of the imports, and find nothing
    try:
        with contextlib.closing(_start_spares()) as spares:  # a caller may outlive a failed start
            _serve(args, spares)
    except ConfigError as error:
        with contextlib.suppress(OSError):  # such as a full disk
            print(f"paddlepool serve: {error.message}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    finally:
        gc.enable()


def _replace_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Libraries print to the descriptors 1 and 2, which must not belong to a socket or a file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  open until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _serve(args: argparse.Namespace, spares: Spares) -> NoReturn:
    from pydantic import ValidationError

    from paddlepool.cli.shared import served_repository
    from paddlepool.main import create_app
    from paddlepool.models.sources.sync import first_refresh
    from paddlepool.service.api.services import Lifecycle
    from paddlepool.service.server import system as server
    from paddlepool.settings.server import explain, unknown_variables
    from paddlepool.tasks.task import load_tasks, settings_class

    use_one_heap()
    names = ("host", "port", "model_repository", "log_level")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    tasks = load_tasks()
    all_settings = settings_class(tasks.values())
    if passed := server.passed_listener():
        options |= zip(("host", "port"), passed.getsockname(), strict=False)
    try:
        settings = all_settings(**options)
    except ValidationError as error:
        raise ConfigError(explain(error, options=options)) from None
    log.configure(settings.log_level, form=_log_formatter(settings.log_format, settings.replica))
    for name in unknown_variables(os.environ, all_settings):
        logging.getLogger("paddlepool.server").warning("%s is not a setting", name)
    lifecycle = Lifecycle(accepts_when_ready=passed is not None)
    try:
        # Bind the address first: no model is opened if the port is taken.
        port = settings.port
        if not (listener := passed):
            listener = server.bind(settings.host, port)
            listener.listen(settings.backlog)
        if settings.grpc_port:  # gRPC opens its port itself, in the event loop
            port = settings.grpc_port
            server.bind(settings.host, port, shared=passed is not None).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host}:{port}: {error.strerror}") from None
    settings = settings.model_copy(update={"model_repository": served_repository(settings)})
    if settings.model_source:  # before anything is read; a failure is logged
        polled = settings.repository_poll_seconds > 0
        first_refresh(settings.model_source, settings.model_repository, polled=polled)
    if not settings.model_repository.exists():
        root = shlex.quote(str(settings.model_repository))
        raise ConfigError(
            f"there is no model repository at {root}. Make and serve one: paddlepool pull u2netp "
            f"--repository {root} && paddlepool serve --model-repository {root}"
        )
    ports = 1 if settings.grpc_port is None else 2
    server.require_descriptors(settings.max_connections, ports=ports)
    server.require_room_for_children()
    app = create_app(settings, lifecycle=lifecycle, tasks=tasks, spares=spares)
    # Without this, a full garbage collection would scan everything imported so far and stop every
    # request for 60 ms; a reload makes enough objects to trigger one.
    gc.freeze()
    gc.enable()
    gc.set_threshold(COLLECTED_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(SWITCH_SECONDS)
    server.run(app, listener=listener)


def _start_spares() -> Spares:
    """Start processes that import their libraries while this one imports its own.

    These are the codec processes, and predictors for OpenVINO if an earlier start has stored
    compiled programs. They end with this process. The settings are not read yet, as that takes
    half of the imports: if these processes do not fit them, others are started later.
    """
    spares = Spares()
    spares.start(program.ENVIRONMENT, prepare=program.SANDBOX, count=CODEC_PROCESSES)
    from paddlepool.engine.backends.compiled import CompiledPrograms
    from paddlepool.engine.backends.process import ENVIRONMENT, OPENVINO
    from paddlepool.models.repository.state_file import state_path

    file = os.environ.get(STATE_FILE)
    if CompiledPrograms.beside(state_path(Path(file) if file else None)).any():
        count = min(SPARE_PREDICTORS, math.ceil(available_cores()))
        spares.start(ENVIRONMENT, prepare=OPENVINO, count=count)
    return spares


def _log_formatter(log_format: str, replica: str) -> logging.Formatter:
    """Return the formatter for "json", "text", or "auto": text to a terminal, JSON elsewhere."""
    if log_format == "json" or (log_format == "auto" and not sys.stderr.isatty()):
        return log.JsonFormatter(replica=replica or socket.gethostname())
    return log.TerminalFormatter(colour=log.coloured(sys.stderr))


def main() -> int:
    """Serve as a child process of another program.

    Exits at once, with code 0, when standard input closes, as it does when the parent ends.
    """
    parser = argparse.ArgumentParser()
    configure(parser)
    threading.Thread(target=_end_with_input, daemon=True).start()
    return run(parser.parse_args())


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # child processes end when their pipes close


if __name__ == "__main__":
    sys.exit(main())
