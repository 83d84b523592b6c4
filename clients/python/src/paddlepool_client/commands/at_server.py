"""The server that a command asks: a running one, or one of its own until the command ends."""

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

from paddlepool_client import Client, RequestFailed, Retries, Unreachable
from paddlepool_client.commands.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
OURS, REPOSITORY = "PADDLEPOOL_", "PADDLEPOOL_MODEL_REPOSITORY"
ROUTING = ("model", "predictor", "timeout_ms")
ONCE = Retries(attempts=1)

CANNOT_START = "cannot start: "
"""How /info begins the reason of a group that no later request will start either."""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"of the server (default {DEFAULT_URL})")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--local",
        action="store_true",
        help="without a server: the models of ./model_repo, or PADDLEPOOL_MODEL_REPOSITORY, are "
        "loaded for this command, which takes some seconds",
    )
    parser.add_argument("--model", help="`name` or `name@version`")
    parser.add_argument("--predictor", metavar="GROUP", help="instance group of the model")
    parser.add_argument("--timeout-ms", type=positive, help="deadline of each request")


def positive(text: str) -> int:
    """A whole number from 1. Raises ArgumentTypeError."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, received {text!r}")
    return int(text)


def routing(args: argparse.Namespace) -> dict[str, str | int]:
    """The given options that choose a model, a group and a deadline."""
    return {name: getattr(args, name) for name in ROUTING if getattr(args, name) is not None}


@contextlib.contextmanager
def server_of(
    args: argparse.Namespace, *, task: str, connect: Callable[..., Client]
) -> Iterator[str]:
    """The address of a server that answers and has what is asked for. Raises CommandError.

    `connect` makes a client of an address and of its other settings.
    """
    with _own_server() if args.local else contextlib.nullcontext(checked(args.url)) as url:
        _check(url, args, task=task, connect=connect)
        try:
            yield url
        finally:
            # Whether a group that starts on demand can start is known only after a request for it.
            with contextlib.suppress(RequestFailed), connect(url, retries=ONCE) as client:
                _check_group(_models(client, args, task), args)


def _check(
    url: str, args: argparse.Namespace, *, task: str, connect: Callable[..., Client]
) -> None:
    """Check connection, model and group before the first request. Raises CommandError."""
    with connect(url, retries=ONCE) as client:
        try:
            client.ready()
            models = _models(client, args, task)
        except Unreachable as error:
            raise unreachable(url, error) from error
        except RequestFailed as error:
            raise CommandError(f"{url}: {error}") from error
    if args.model:
        name, at, version = args.model.partition("@")
        named = {f"{each['name']}@{each['version']}" if at else each["name"] for each in models}
        if args.model not in named:
            words = _words(sorted(named))
            raise CommandError(f"--model {args.model}: for this the server has {words}")
        models = [each for each in models if each["name"] == name]
        models = [each for each in models if not at or str(each["version"]) == version]
    groups = sorted({group["name"] for group in _groups(models)})
    if args.predictor and groups and args.predictor not in groups:
        raise CommandError(f"--predictor {args.predictor}: there are {_words(groups)}")
    _check_group(models, args)


def _models(client: Client, args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """The task's models from /info; empty where the command names neither model nor group."""
    if not (args.model or args.predictor):
        return []
    return [each for each in client.info()["models"] if each["task"] == task]


def _groups(models: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [group for each in models for group in each["predictors"] or ()]


def _check_group(models: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> None:
    """Raises CommandError, with the reason, where the chosen group cannot start."""
    reasons = [
        each.get("reason") or "" for each in _groups(models) if each["name"] == args.predictor
    ]
    if reasons and all(reason.startswith(CANNOT_START) for reason in reasons):
        raise CommandError(f"--predictor {args.predictor} {reasons[0]}")


def _words(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def checked(url: str) -> str:
    """The address. Raises CommandError for one that no request can be sent to."""
    if "://" not in url:
        raise CommandError(f"--url {url} has no scheme; is it http://{url} ?")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port beyond 65535, half of a bracket
        good = False
    if not good:
        raise CommandError(f"--url {url} is no address; expected for example {DEFAULT_URL}")
    return url


def key_fits(api_key: str | None) -> str | None:
    """The key. Raises CommandError for one that no header can carry."""
    if api_key and not api_key.isprintable():
        raise CommandError("--api-key has characters that no HTTP header carries")
    return api_key


def unreachable(url: str, error: Unreachable) -> CommandError:
    """The error for a server that does not answer, with what to do."""
    return CommandError(
        f"no server at {url} ({error}); start one with `paddlepool serve`, or say --local to do "
        "without"
    )


@contextlib.contextmanager
def _own_server() -> Iterator[str]:
    """The address of a server on a free port of this machine that has loaded its models.

    A process of its own: what opens pictures and runs models is confined there as it always is.
    """
    environment = {k: v for k, v in os.environ.items() if k == REPOSITORY or not k.startswith(OURS)}
    environment |= {"PADDLEPOOL_PROVE_GROUPS": "off", "PADDLEPOOL_STATE_FILE": "off"}
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli.serve", "--port", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,  # Ctrl-C is for the command, whose end ends it
    ) as process:
        try:
            print("loading the models", file=sys.stderr)
            yield _loaded(process.stderr or ())
        finally:
            process.kill()


def _loaded(log: Iterable[str]) -> str:
    """The address, as the log says it. Raises CommandError with a server's last words."""
    url = last = ""
    for line in log:
        last = line.strip()
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            url = str(said.get("url", url))
            if said["event"] == "loaded":
                return url
    raise CommandError(f"--local: {last.removeprefix('paddlepool serve: ')}")
