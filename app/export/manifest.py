"""manifest.json of a model version: its tensors, its provenance, the sha256 of each file."""

import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app import __version__
from app.contracts.tensors import TensorSpec
from app.export.weights.release import sha256_of
from app.repository.manifest import MANIFEST, ONNX_SUFFIX, DerivedProgram

ORIGINS = ("trained here", "official release", "reference reconstruction", "random")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a version's weights came from, as `/info` shows it."""

    origin: str
    preview: bool
    source: str
    licence: str
    sha256: str


def write_manifest(
    directory: Path,
    *,
    program: str,
    params: str | None,
    network: Mapping[str, Any] | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Provenance,
    programs: Sequence[DerivedProgram] = (),
) -> None:
    """Lists every file now in `directory`; nothing may be written there afterwards.

    The text depends on the contents alone (no times, no paths): equal versions are equal bytes.
    It is written beside the version and moved in by one rename: a reader never finds a part of it.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.iterdir())
    }
    manifest = {
        "format": 2 if programs or program.endswith(ONNX_SUFFIX) else 1,
        "program": program,
        "params": params,
        "files": files,
        "inputs": [asdict(spec) for spec in inputs],
        "outputs": [asdict(spec) for spec in outputs],
        "network": network,
        "weights": asdict(weights),
        "built_with": {
            "paddlepool": __version__,
            "paddle": importlib.metadata.version("paddlepaddle"),
        },
        **({"programs": [asdict(each) for each in programs]} if programs else {}),
    }
    text = json.dumps(manifest, ensure_ascii=False, indent=2, sort_keys=True)
    staged = directory.parent / f".{directory.name}-{MANIFEST}"
    with staged.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    staged.rename(directory / MANIFEST)
