"""The server of a command: a running one, or its own until the command ends."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from httpx import URL

from paddlepool_client import ApiError, Client, RequestFailed, Retries, Unreachable
from paddlepool_client.client import DEFAULT_URL
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.exchange import NO_CONNECTION, without_user

PREFIX, REPOSITORY = "PADDLEPOOL_", "PADDLEPOOL_MODEL_REPOSITORY"
ROUTING = ("model", "instance_group", "predictor", "timeout_ms")
ONCE = Retries(attempts=1)

CANNOT_START = "cannot start: "
"""Prefix in /info of the reason of a group that can never start."""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"of the server (default {DEFAULT_URL})")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--local",
        action="store_true",
        help="start a server for this command, with the models that `paddlepool serve` would "
        "serve; loading takes some seconds",
    )
    parser.add_argument("--model", help="`name` or `name@version`")
    parser.add_argument(
        "--instance-group",
        "--predictor",
        dest="predictor",  # which older servers know, too
        metavar="GROUP",
        help="instance group of the model",
    )
    parser.add_argument("--timeout-ms", type=positive, help="deadline of each request")


def positive(text: str) -> int:
    """Parse a positive integer. Raises ArgumentTypeError for another text."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, received {text!r}")
    return int(text)


def routing(args: argparse.Namespace) -> dict[str, str | int]:
    """Return the command's options in ROUTING (model, group and deadline) that are set."""
    options = vars(args)
    return {name: options[name] for name in ROUTING if options.get(name) is not None}


@contextlib.contextmanager
def server_of(
    args: argparse.Namespace, *, task: str, connect: Callable[..., Client]
) -> Iterator[str]:
    """Yield the address of a server that answers and has the requested model and group.

    With `args.local`, that is a server of its own, which the block's end stops. `task` is the
    server's name of the task. `connect` builds a client from an address and further settings.
    Raises CommandError if there is no such server, and also after the block if the group could not
    start.
    """
    with _own_server() if args.local else contextlib.nullcontext(checked(args.url)) as url:
        _check(url, args, task=task, connect=connect)
        try:
            yield url
        finally:
            # Only a request shows whether a group that starts on demand can start.
            with contextlib.suppress(RequestFailed), connect(url, retries=ONCE) as client:
                _check_group(_models(client, args, task), args)


def _check(
    url: str, args: argparse.Namespace, *, task: str, connect: Callable[..., Client]
) -> None:
    """Raise CommandError unless the server answers and has the requested model and group."""
    try:
        client = connect(url, retries=ONCE)
    except ValueError as error:
        raise CommandError(str(error)) from error
    with client:
        try:
            client.ready()
            models = _models(client, args, task)
        except Unreachable as error:
            raise unreachable(error) from error
        except RequestFailed as error:
            raise CommandError(with_address(url, error)) from error
    if args.model:
        name, at, version = args.model.partition("@")
        named = {f"{model['name']}@{model['version']}" if at else model["name"] for model in models}
        if args.model not in named:
            words = _words(sorted(named))
            raise CommandError(f"--model {args.model}: for this task the server has {words}")
        models = [model for model in models if model["name"] == name]
        models = [model for model in models if not at or str(model["version"]) == version]
    groups = sorted({group["name"] for group in _groups(models)})
    if args.predictor and groups and args.predictor not in groups:
        raise CommandError(f"--instance-group {args.predictor}: there are {_words(groups)}")
    _check_group(models, args)


def _models(client: Client, args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """Return the task's models from /info; [] if the command names neither model nor group."""
    if not (args.model or args.predictor):
        return []
    return [model for model in client.info()["models"] if model["task"] == task]


def _groups(models: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [group for model in models for group in model["predictors"] or ()]


def _check_group(models: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> None:
    """Raise CommandError with the reason if the chosen group can start in none of the models."""
    reasons = [
        group.get("reason") or "" for group in _groups(models) if group["name"] == args.predictor
    ]
    if reasons and all(reason.startswith(CANNOT_START) for reason in reasons):
        raise CommandError(f"--instance-group {args.predictor} {reasons[0]}")


def _words(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def checked(url: str) -> str:
    """Return the address. Raises CommandError if it is invalid."""
    if "://" not in url:
        raise CommandError(f"--url {url} has no scheme; is it http://{url} ?")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port above 65535, or an unmatched bracket
        good = False
    if not good:
        raise CommandError(
            f"--url {url} is not a valid address; expected for example {DEFAULT_URL}"
        )
    return url


def key_fits(api_key: str | None) -> str | None:
    """Return the key unchanged. Raises CommandError if it has characters that are not printable."""
    if api_key and not api_key.isprintable():
        raise CommandError("--api-key has characters that are invalid in an HTTP header")
    return api_key


def with_address(url: str, error: RequestFailed) -> str:
    """Return the error's message with the server's address, which an ApiError lacks."""
    return f"{without_user(URL(url))}: {error}" if isinstance(error, ApiError) else str(error)


def unreachable(error: Unreachable) -> CommandError:
    """Return the error for a server that does not answer, with advice if nothing listens there."""
    if not isinstance(error.__cause__, NO_CONNECTION):
        return CommandError(str(error))
    return CommandError(
        f"{error}; start a server with `paddlepool serve`, or use --local to run without one"
    )


@contextlib.contextmanager
def _own_server() -> Iterator[str]:
    """Start a server on a free local port; yield its address when it has loaded its models.

    A model that cannot be loaded is left out. The server is a separate process, so pictures are
    opened and models run with the usual confinement. The block's end kills it. Raises CommandError
    if it ends before it has loaded its models.
    """
    variables = {k: v for k, v in os.environ.items() if k == REPOSITORY or not k.startswith(PREFIX)}
    variables |= {"PADDLEPOOL_PROVE_GROUPS": "off", "PADDLEPOOL_STATE_FILE": "off"}
    with subprocess.Popen(
        [sys.executable, "-m", "paddlepool.cli.serve", "--port", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=variables,
        start_new_session=True,  # Ctrl-C goes to the command, whose end stops the server
    ) as process:
        try:
            print("loading the models", file=sys.stderr)
            yield _loaded(process.stderr or ())
        finally:
            process.kill()


def _loaded(log: Iterable[str]) -> str:
    """Read the server's log until it has loaded its models; return its address.

    Raises CommandError with the log's last line if the log ends before.
    """
    url = last = ""
    for line in log:
        last = line.strip()
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            url = str(record.get("url", url))
            if record["event"] == "loaded":
                return url
    raise CommandError(f"--local: {last.removeprefix('paddlepool serve: ')}")
