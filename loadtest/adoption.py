"""Measure how soon servers start, and how soon they adopt another model under load, in turns.

    .venv/bin/python loadtest/adoption.py [--rounds N] [--servers Paddlepool LitServe ...]

Two clients send pictures without a pause while the model is replaced, as `changed` in benchmark.py
does. Each round starts a server twice, and the second start counts: Paddlepool then has chosen its
instance group. peers.py installs the peers.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

from benchmark import MODEL, PADDLEPOOL, Row, changed, started
from cases import picture
from harness import ROOT
from pages import Column, ranked_table
from peer_servers import PEER_SERVERS, running
from peers import as_onnx
from tqdm import tqdm

from paddlepool.cli.shared import read_version
from paddlepool.models.repository.layout import ModelRepository

COLUMNS = (
    Column("start", lambda runs: [run["starts"][-1] for run in runs], "s"),
    Column("another model", lambda runs: [run["seconds"] for run in runs], "s"),
    Column("failed", lambda runs: [run["failed"] for run in runs]),
    Column("p99 before", lambda runs: [run["p99_before_seconds"] for run in runs], "ms", 1000),
    Column("p99 meanwhile", lambda runs: [run["p99_seconds"] for run in runs], "ms", 1000),
    Column("ratio", lambda runs: [run["p99_seconds"] / run["p99_before_seconds"] for run in runs]),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server")
    parser.add_argument("--servers", nargs="+", default=["Paddlepool"], help="default: Paddlepool")
    args = parser.parse_args()
    everyone = {peer.name: peer for peer in (PADDLEPOOL, *PEER_SERVERS)}
    if unknown := set(args.servers) - set(everyone):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(everyone)}")
    cores = len(os.sched_getaffinity(0))
    report: dict[str, list[Row]] = {name: [] for name in args.servers}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        onnx = as_onnx(read_version(ModelRepository(ROOT / "model_repo"), MODEL, None), scratch)
        for _ in tqdm(range(args.rounds), unit="round", disable=None):
            for name in args.servers:
                peer, starts = everyone[name], list[float]()
                start = partial(running, peer, onnx, scratch / name, workers=cores)
                request = peer.build(picture())
                with started(peer, start, request, starts):
                    pass
                report[name].append(changed(peer, start, request, starts) | {"starts": starts})
    print(ranked_table(COLUMNS, report))


if __name__ == "__main__":
    main()
