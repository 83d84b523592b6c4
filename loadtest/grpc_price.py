"""What gRPC costs beside HTTP: the same tensors to the same server, interleaved.

    .venv/bin/python loadtest/grpc_price.py [--models mnist,emotion,u2netp] [--clients 1,4]

Each model gets its own self-test's input as raw tensors, from Triton's clients, HTTP and gRPC in
turn. The ratio is gRPC's requests a second over HTTP's: the median of all rounds, with the lowest
and the highest. Exit code 1 when a median is below 0.9.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, STOP_SECONDS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent and its kin, while they are imported
    import tritonclient.grpc
    import tritonclient.http

LEAST = 0.9
START_SECONDS = 120.0
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
DATATYPES = {"float32": "FP32", "int64": "INT64"}
LISTENING = r'"listening[^}]*"(?:url|address)": "(?:http://)?([0-9.:]+)"'
Ask = Callable[[], object]


@contextlib.contextmanager
def served(repository: Path) -> Iterator[Mapping[str, str]]:
    """A server; its address for each protocol, once every model is ready."""
    environment = os.environ | {
        "PADDLEPOOL_GRPC_PORT": "0",
        "PADDLEPOOL_STATE_FILE": "off",
        "PADDLEPOOL_PROVE_GROUPS": "off",
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
        "PADDLEPOOL_MODEL_REPOSITORY": str(repository),
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until = time.monotonic() + START_SECONDS
            while (text := _text(log)).count('"listening') < 2 or '"loaded"' not in text:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server did not start:\n{text}")
                time.sleep(0.1)
            yield dict(zip(PROTOCOLS, re.findall(LISTENING, text), strict=True))
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _text(log: Any) -> str:
    log.seek(0)
    return str(log.read())


def selftest_inputs(repository: Path, model: str) -> dict[str, np.ndarray]:
    """Those of the newest version."""
    newest = max(
        (each for each in (repository / model).iterdir() if each.name.isdecimal()),
        key=lambda each: int(each.name),
    )
    with np.load(newest / "selftest.npz") as archive:
        return {
            name.removeprefix("input."): archive[name]
            for name in archive.files
            if name.startswith("input.")
        }


class Client:
    """One connection, made and used in a thread of its own: the HTTP client is bound to one."""

    def __init__(
        self, protocol: str, address: str, model: str, arrays: Mapping[str, np.ndarray]
    ) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._ask: Ask = self._thread.submit(_asking, protocol, address, model, arrays).result()

    def start(self, until: float) -> Future[int]:
        """How many requests were answered until that time."""
        return self._thread.submit(self._work, until)

    def _work(self, until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            self._ask()
            count += 1
        return count


def _asking(protocol: str, address: str, model: str, arrays: Mapping[str, np.ndarray]) -> Ask:
    library = PROTOCOLS[protocol]
    client = library.InferenceServerClient(address)
    inputs = []
    for name, array in arrays.items():
        inputs.append(library.InferInput(name, list(array.shape), DATATYPES[array.dtype.name]))
        inputs[-1].set_data_from_numpy(array)
    return partial(client.infer, model, inputs)


def rate(clients: Sequence[Client], seconds: float) -> float:
    """Requests a second of all together."""
    began = time.perf_counter()
    working = [client.start(began + seconds) for client in clients]
    total = sum(each.result() for each in working)
    return total / (time.perf_counter() - began)


def measure(
    addresses: Mapping[str, str],
    repository: Path,
    model: str,
    clients: int,
    rounds: int,
    seconds: float,
) -> float:
    """The median ratio, which is printed with the rest."""
    arrays = selftest_inputs(repository, model)
    asks = {
        protocol: [Client(protocol, address, model, arrays) for _ in range(clients)]
        for protocol, address in addresses.items()
    }
    for each in asks.values():
        rate(each, seconds / 4)
    pairs = []
    for number in range(rounds):
        order = list(asks) if number % 2 else list(reversed(asks))
        found = {protocol: rate(asks[protocol], seconds) for protocol in order}
        pairs.append(found)
    ratios = [found["grpc"] / found["http"] for found in pairs]
    ratio = statistics.median(ratios)
    size = sum(array.nbytes for array in arrays.values())
    http, grpc = (statistics.median(found[name] for found in pairs) for name in PROTOCOLS)
    print(
        f"{model:10}{clients:8}{size:12}{http:11.1f}{grpc:11.1f}{ratio:9.2f}"
        f"  ({min(ratios):.2f} … {max(ratios):.2f})",
        flush=True,
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--models", default="mnist,emotion,u2netp")
    parser.add_argument("--clients", default="1,4")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of phases")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a phase")
    arguments = parser.parse_args()
    print(f"{'model':10}{'clients':>8}{'bytes':>12}{'HTTP/s':>11}{'gRPC/s':>11}{'ratio':>9}")
    with served(arguments.repository) as addresses:
        ratios = [
            measure(
                addresses,
                arguments.repository,
                model,
                int(clients),
                arguments.rounds,
                arguments.seconds,
            )
            for model in arguments.models.split(",")
            for clients in arguments.clients.split(",")
        ]
    return 0 if min(ratios) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
