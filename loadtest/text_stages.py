"""Where the time of one short text over HTTP goes, from the predictor's run outwards.

    .venv/bin/python loadtest/text_stages.py [--predictor GROUP] [--rounds N] [--json FILE]

One client, one text, one server, the pieces in turns within each round. The stages are the server's
own (Server-Timing); what they leave of the wall time is HTTP: its parsing, the layers, the router
and the reply, of which the bare way of a request without any work is printed beside it. `hop` is a
call of a child process that does nothing, with the tensors of this text: `queue` holds half of it.
Times are medians in microseconds over all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cases import TEXT, tokens_of
from harness import ROOT, Connection, request, running_server
from tqdm import tqdm

from app.backends.process import NICE
from app.contracts.tensors import Tensors
from app.process.child import Child, Limits
from app.process.confinement import Confinement
from app.repository.layout import ModelRepository

HERE = Path(__file__).resolve().parent
REQUESTS = 60
"""Of each piece in a round."""


def open_nothing(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Target of a child that answers as a predictor does and computes nothing."""

    def answer(
        _meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Tensors]:
        return {}, {"0": arrays["input_ids"][:, :6]}

    return {}, answer


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds by piece, of every request."""
    taken: dict[str, list[float]] = defaultdict(list)
    repository = ModelRepository(arguments.repository)
    model = repository.read("emotion", repository.versions("emotion")[0])
    tensors = tokens_of(model, TEXT)
    body = json.dumps({"inputs": TEXT}).encode()
    path = "/sentiment" + (f"?predictor={arguments.predictor}" if arguments.predictor else "")
    text = request("POST", path, body, content_type="application/json")
    live = request("GET", "/v2/health/live")
    limits = Limits(
        nice=NICE,
        environment={"PYTHONPATH": f"{HERE}:{HERE.parent}"},
        confinement=Confinement.PREDICTOR,
    )
    with (
        running_server(arguments.repository) as server,
        contextlib.closing(Connection(server.port)) as connection,
        contextlib.closing(Child("text_stages:open_nothing", {}, limits=limits)) as child,
    ):

        def whole() -> None:
            reply = connection.send(text)
            taken["wall"].append(reply.seconds)
            stages = reply.stages()
            for stage, seconds in stages.items():
                taken[stage].append(seconds)
            taken["HTTP"].append(reply.seconds - sum(stages.values()))

        def afresh() -> None:
            with contextlib.closing(Connection(server.port)) as new:
                taken["wall, new connection"].append(new.send(text).seconds)

        def nothing() -> None:
            taken["HTTP without work"].append(connection.send(live).seconds)

        def hop() -> None:
            began = time.perf_counter()
            child.call({}, tensors, timeout=60.0)
            taken["hop"].append(time.perf_counter() - began)

        pieces: tuple[Callable[[], None], ...] = (whole, afresh, nothing, hop)
        for piece in pieces:
            for _ in range(20):
                piece()
        taken.clear()
        for _ in tqdm(range(arguments.rounds), unit="round", disable=None):
            for piece in pieces:
                for _ in range(REQUESTS):
                    piece()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--predictor", default="", help="a group, if not the default one")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    taken = measure(arguments)
    found = {name: 1e6 * statistics.median(seconds) for name, seconds in taken.items()}
    for name, microseconds in found.items():
        print(f"{name:24}{microseconds:8.0f} µs")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
