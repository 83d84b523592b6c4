"""What the full U²-Net costs beside U²-Netp: time of a run, resident memory, size on disk.

    python loadtest/full_network.py [--groups onednn,openvino] [--runs 10]

Both are exported with random weights into a temporary repository: neither time nor memory depends
on what the weights are. One predictor of each network lives at a time for each instance group, one
picture a run, and the two take turns, so that what else the machine does meets both alike. Human
segmentation is the full network with other weights.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

from app.backends.process import ProcessBackend
from app.contracts.errors import PaddlepoolError
from app.contracts.ports import Predictor
from app.contracts.tensors import Array, TensorSpec
from app.export.config_text import segment_config
from app.export.exporter import Origin, export_version
from app.export.recipe import MASK_SIZE, Recipe
from app.networks import build
from app.repository.layout import ModelFiles, ModelRepository

SEED = 20
NETWORKS = ("u2netp", "u2net")
GROUPS = "onednn,openvino"
RUN_SECONDS = 120.0


def export_random(repository: Path, network: str, *, side: int = MASK_SIZE) -> ModelFiles:
    """Publishes the network with weights drawn from a fixed seed as version 1 of its name."""
    paddle.seed(SEED)
    state = {
        name: np.asarray(value.numpy(), np.float32)
        for name, value in build(network, {}).state_dict().items()
    }
    digest = hashlib.sha256(b"".join(value.tobytes() for value in state.values())).hexdigest()
    recipe = Recipe(
        network=network,
        options={},
        state=state,
        inputs=(TensorSpec("input", "float32", (-1, 3, side, side)),),
        outputs=(TensorSpec("d0", "float32", (-1, 1, side, side)),),
        feeds={"input": picture(side)},
        config=segment_config(side),
        weights_sha256=digest,
    )
    origin = Origin("random", source=f"drawn with seed {SEED}", licence="none", preview=True)
    export_version(recipe, repository=repository, name=network, origin=origin, version=1)
    return ModelRepository(repository).read(network, 1)


def picture(side: int) -> Array:
    """A network's input (1, 3, side, side) about as large as a photograph's."""
    drawn: Array = np.random.default_rng(SEED).normal(0, 1, (1, 3, side, side)).astype(np.float32)
    return drawn


def milliseconds(predictors: Sequence[Predictor], *, runs: int, side: int) -> list[float]:
    """The median run of each; they take turns, after a run of each that is not counted."""
    inputs = {"input": picture(side)}
    times: list[list[float]] = [[] for _ in predictors]
    for turn in range(runs + 1):
        for predictor, seconds in zip(predictors, times, strict=True):
            started = time.perf_counter()
            predictor.run(inputs, timeout=RUN_SECONDS)
            if turn:
                seconds.append(time.perf_counter() - started)
    return [statistics.median(each) * 1000 for each in times]


def measure(models: Sequence[ModelFiles], group: str, *, runs: int, side: int) -> list[str]:
    """A line for each model: its run and its memory with this instance group."""
    predictors: list[Predictor] = []
    try:
        for files in models:
            predictors.append(ProcessBackend()(files.spec(files.config.group(group))))
        times = milliseconds(predictors, runs=runs, side=side)
        resident = [predictor.resident_bytes() / 1e6 for predictor in predictors]
    finally:
        for predictor in predictors:
            predictor.close()
    return [
        f"{group:14}{files.name:8}{each:10.0f} ms{each / times[0]:8.1f} x{held:10.0f} MB"
        f"{held / resident[0]:8.1f} x"
        for files, each, held in zip(models, times, resident, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", default=GROUPS, help=f"instance groups (default {GROUPS})")
    parser.add_argument("--runs", type=int, default=10, help="of each predictor (default 10)")
    parser.add_argument(
        "--side", type=int, default=MASK_SIZE, help=f"of the input (default {MASK_SIZE})"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        models = [export_random(Path(folder), name, side=given.side) for name in NETWORKS]
        for files in models:
            size = sum(entry.bytes for entry in files.manifest.files.values()) / 1e6
            print(f"{files.name}: {size:.0f} MB on disk")
        print(f"{'one thread':14}{'':8}{'median run':>13}{'':10}{'resident':>13}")
        for group in given.groups.split(","):
            try:
                lines = measure(models, group, runs=given.runs, side=given.side)
            except PaddlepoolError as error:
                lines = [f"{group:14}NOT MEASURED: {error.message}"]
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
