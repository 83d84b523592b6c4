"""The official U²-Netp release: where it is, what it must be, and whether a model has it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from app.export.publish import versions


@dataclass(frozen=True, slots=True)
class Release:
    """One file of a public release; `size` in bytes, digests in hex."""

    url: str
    size: int
    md5: str
    sha256: str


U2NETP_RELEASE = Release(
    url="https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2netp.onnx",
    size=4_574_861,
    md5="8e83ca70e441ab06c318d82300c84806",
    sha256="309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8",
)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def published_version(model: Path, sha256: str) -> Path | None:
    """The version of `model` that was built from the weights file with this digest, if any."""
    for number in versions(model):
        try:
            manifest = json.loads((model / str(number) / "manifest.json").read_text("utf-8"))
            if manifest["weights"]["sha256"] == sha256:
                return model / str(number)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged version is the server's business; it is not the one we look for
    return None
