"""Model versions on disk for tests: any bytes as program and weights, with a manifest that fits."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.tensors import TensorSpec

PAIRS = (TensorSpec("x", "float32", (-1, -1)),), (TensorSpec("y", "float32", (-1, -1)),)
"""Inputs and outputs of the models that fakes serve: y = 2 x."""
TINY = (
    (TensorSpec("image", "float32", (-1, 3, -1, -1)),),
    (TensorSpec("scores", "float32", (-1, 2)), TensorSpec("mean", "float32", (-1, 4))),
)
"""Those of the model that `tests.tiny_model` exports."""


def write_version(
    directory: Path,
    *,
    program: bytes = b'{"program": 1}',
    params: bytes = bytes(range(256)) * 8,
    specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]] = PAIRS,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    outputs: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write a complete version; returns its directory."""
    directory.mkdir(parents=True)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    (directory / "inference.json").write_bytes(program)
    (directory / "inference.pdiparams").write_bytes(params)
    golden: dict[str, Any] = {f"input.{name}": a for name, a in (inputs or {"x": x}).items()}
    golden |= {f"output.{name}": array for name, array in (outputs or {"y": 2 * x}).items()}
    np.savez_compressed(directory / "selftest.npz", tolerance=np.float64(1e-4), **golden)
    write_manifest(directory, specs)
    return directory


def write_manifest(
    directory: Path,
    specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]] = PAIRS,
    **changes: Any,
) -> None:
    """Write a manifest that lists every file now in `directory`; `changes` replace its keys."""
    (directory / "manifest.json").unlink(missing_ok=True)
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in directory.iterdir()
    }
    described = [
        [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)} for spec in side]
        for side in specs
    ]
    manifest = {
        "format": 1,
        "program": "inference.json",
        "params": "inference.pdiparams",
        "files": files,
        "inputs": described[0],
        "outputs": described[1],
        "network": None,
        "weights": {"origin": "random", "preview": True, "source": "a test", "licence": "none"},
        "built_with": {"paddlepool": "0.1.0", "paddle": "3.2.2"},
    } | changes
    (directory / "manifest.json").write_text(json.dumps(manifest), "utf-8")


ON_DEMAND = 'start = "on_demand"'


def group(name: str, *lines: str, backend: str = "fake") -> str:
    """A group of config.toml, with these lines besides."""
    return "\n".join(
        ["[[instance_group]]", f'name = "{name}"', f'backend = "{backend}"', *lines, ""]
    )


def write_config(model: Path, text: str) -> None:
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.toml").write_text(text, "utf-8")


def add_to_config(model: Path, text: str) -> None:
    with (model / "config.toml").open("a", encoding="utf-8") as file:
        file.write(text)


def write_model(model: Path, text: str) -> Path:
    """Write a model with this configuration and a version 1; returns its directory."""
    write_config(model, text)
    write_version(model / "1")
    return model
