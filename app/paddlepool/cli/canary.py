"""`paddlepool models canary`, `promote`, `reject` and `rollback`: requests to a running server."""

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
from pydantic import ValidationError

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.result import align_columns
from paddlepool.settings.server import Settings, explain

URL = "http://127.0.0.1:8000"
SECONDS = 600.0
"""Timeout of a request. A promotion opens new predictors, which takes long on a busy server."""

ACTIONS = {
    "canary": "show the new version of a model, the evidence about it, and the verdict",
    "promote": "serve the new version of a model now",
    "reject": "keep the new version of a model unloaded, until its files change",
    "rollback": "return to the version that the present one has replaced",
}


def configure(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for action, text in ACTIONS.items():
        parser = actions.add_parser(
            action, help=text, description=f"{text.capitalize()}. Needs PADDLEPOOL_ADMIN_KEY."
        )
        parser.set_defaults(act=partial(act, action))
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument("--url", default=URL, help=f"address of the server (default {URL})")
        parser.add_argument("--json", action="store_true", help="print the reply as JSON")


def act(
    action: str, args: argparse.Namespace, *, transport: httpx.BaseTransport | None = None
) -> int:
    """Send the request of an action to the server, print its reply and return 0.

    Raises ConfigError if the settings are invalid or have no admin key, and if the server refuses
    or does not answer as expected.
    """
    try:
        key = Settings().admin_key
    except ValidationError as error:
        raise ConfigError(explain(error)) from error
    if key is None:
        raise ConfigError("PADDLEPOOL_ADMIN_KEY is not set: model control needs the admin key")
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"}
    try:
        with httpx.Client(
            base_url=args.url, headers=headers, timeout=SECONDS, transport=transport
        ) as client:
            path = f"/v2/repository/models/{args.model}/{action}"
            reply = client.request("GET" if action == "canary" else "POST", path)
            document = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"{args.url}: no reply of a Paddlepool server: {error}") from error
    if reply.is_error:
        raise ConfigError(str(document.get("error", reply.status_code)))
    print(json.dumps(document, indent=1) if args.json else text_of(document))
    return 0


def text_of(status: Mapping[str, Any]) -> str:
    """Format the server's reply, a CanaryStatus as JSON, as tables for a person."""
    serving, previous, own, current = (
        _version(status, name, other)
        for name, other in (
            ("serving", "previous"),
            ("previous", "serving"),
            ("version", "current"),
            ("current", "version"),
        )
    )
    facts = [("serving", f"{status['model']} {serving}")]
    if status["previous"] is not None:
        facts.append(("before", f"{previous}: `rollback` returns to it"))
    if status["version"] is None:
        facts.append(("canary", status["reason"] or "no new version"))
        return align_columns(_labelled(facts))
    facts += [
        ("canary", f"{own}, beside {current}"),
        ("state", str(status["state"])),
    ]
    if status["reason"]:
        facts.append(("reason", status["reason"]))
    facts.append(("since", _date(status["since"])))
    if status["at"] is not None:
        facts.append(("decided", f"{_date(status['at'])}, {status['by']}"))
    facts.append(("compared", f"{status['compared']} of {status['requests']} requests"))
    if status["compared"]:
        identical = f"{status['identical']} identical"
        if not status.get("parts"):
            identical += " to the last bit"
        interval = f"{status['agreement_low']:.3f} to {status['agreement_high']:.3f}"
        facts.append(("agreement", f"{status['agreement']:.3f} ({interval}), {identical}"))
        if not status.get("parts"):
            facts.append(("difference", f"at most {status['drift']:.3g}"))
    if status["ratio"] is not None:
        interval = f"{status['ratio_low']:.2f} to {status['ratio_high']:.2f}"
        pairs = f"{status['pairs']} pairs of runs"
        facts.append(("run time", f"{status['ratio']:.2f} times ({interval}, {pairs})"))
    facts.append(("failures", f"{status['errors']}{_cause(status['error'])}"))
    text = align_columns(_labelled(facts))
    if slices := status["slices"]:
        rows = [("ANSWER", "NUMBER", "AGREEMENT")]
        rows += [(row["name"], str(row["rows"]), f"{row['agreement']:.3f}") for row in slices]
        text += f"\n\n{align_columns(rows)}"
    return text


def _version(status: Mapping[str, Any], name: str, other: str) -> str:
    """Name a version; for a composed model, with the parts that differ from the other version."""
    own, others = (
        status.get("parts" if key == "version" else f"{key}_parts") or {} for key in (name, other)
    )
    parts = [f"{part} {number}" for part, number in own.items() if others.get(part) != number]
    return f"version {status[name]}" + (f" with {', '.join(parts)}" if parts else "")


def _labelled(facts: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(f"{label}:", value) for label, value in facts]


def _cause(error: str) -> str:
    return f", the last one: {error}" if error else ""


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
