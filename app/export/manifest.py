"""manifest.json of a model version: its tensors, its provenance, the sha256 of each file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import paddle

from app import __version__
from app.engine.tensors import TensorSpec
from app.export.program import PARAMS, PROGRAM
from app.export.release import sha256_of

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
    network: str,
    options: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Provenance,
) -> None:
    """Lists every file now in `directory`; nothing may be written there afterwards.

    The text depends on the contents alone (no times, no paths): equal versions are equal bytes.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.iterdir())
    }
    manifest = {
        "format": 1,
        "program": PROGRAM,
        "params": PARAMS,
        "files": files,
        "inputs": [asdict(spec) for spec in inputs],
        "outputs": [asdict(spec) for spec in outputs],
        "network": {"name": network, "options": dict(options)},
        "weights": asdict(weights),
        "built_with": {"paddlepool": __version__, "paddle": paddle.__version__},
    }
    text = json.dumps(manifest, ensure_ascii=False, indent=2, sort_keys=True)
    (directory / "manifest.json").write_text(text + "\n", "utf-8")
