"""Where the processors' time goes while 32 clients send single texts, and where one text waits.

    .venv/bin/python loadtest/text_time.py [--rounds N] [--seconds S]

Prints microseconds a text: of the API process, of the predictor processes, of this client, and the
rest, in which cores are idle or run other programs. They add up to the number of cores divided by
the texts a second. Then it prints the medians of one client's text: the stages that the server
names, and `between`, which is the client, HTTP, the event loop and the steps between the stages.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from cases import TEXT, text_request
from harness import ROOT, cpu_seconds
from load_clients import HttpWay
from peers import server_of_one

from paddlepool.cli.shared import read_version
from paddlepool.contracts.resources import available_cores
from paddlepool.models.repository.layout import ModelRepository

CLIENTS = 32
SINGLE = 500
"""Texts of one client."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    args = parser.parse_args()
    cores = available_cores()
    files = read_version(ModelRepository(ROOT / "model_repo"), "emotion", None)
    with tempfile.TemporaryDirectory() as scratch, server_of_one(files, Path(scratch)) as served:
        server, group = served
        way = HttpWay(server, text_request(TEXT))
        way.rate(clients=CLIENTS, seconds=2)
        rounds = []
        for _ in range(args.rounds):
            began, client = time.perf_counter(), time.process_time()
            api = cpu_seconds(server.pid, below=False)
            children = cpu_seconds(server.pid) - api
            rate = way.rate(clients=CLIENTS, seconds=args.seconds)
            texts = rate * (time.perf_counter() - began)
            spent = {"API process": cpu_seconds(server.pid, below=False) - api}
            spent["predictors"] = cpu_seconds(server.pid) - api - children - spent["API process"]
            spent["client"] = time.process_time() - client
            spent["rest"] = cores * texts / rate - sum(spent.values())
            rounds.append({"rate": rate, **{n: s / texts * 1e6 for n, s in spent.items()}})
        singles = []
        with way.client() as send:
            send()
            for _ in range(SINGLE):
                reply = send()
                stages = {name: 1000 * value for name, value in reply.stages().items()}
                whole = reply.seconds * 1e6
                between = whole - sum(stages.values())
                singles.append({"whole": whole, **stages, "between": between})
    print(f"{CLIENTS} clients, {group}, {cores} of {os.cpu_count()} cores")
    for name in rounds[0]:
        low, middle, high = np.percentile([row[name] for row in rounds], [0, 50, 100])
        unit = "texts a second" if name == "rate" else "µs a text"
        print(f"{name:>12} {middle:7.0f} {unit} ({low:.0f}–{high:.0f})")
    print("one client")
    for name in singles[0]:
        print(f"{name:>12} {np.median([single[name] for single in singles]):7.0f} µs")


if __name__ == "__main__":
    main()
