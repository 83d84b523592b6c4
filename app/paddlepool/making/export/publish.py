"""Publishes version directories atomically, with the manifest that describes them."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from paddlepool import __version__
from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.models.repository.files import staging_name, sync_directory, write_synced
from paddlepool.models.repository.layout import VERSION, version_numbers
from paddlepool.models.repository.manifest import (
    COMPOSED_FORMAT,
    MANIFEST,
    ONNX_SUFFIX,
    DerivedProgram,
    is_unused,
)

LAST_VERSION = 999_999_999
TEMPLATES = Path(__file__).parent / "templates"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package, as a manifest records it."""
    return {name: importlib.metadata.version(name) for name in packages}


def template(name: str, **values: object) -> str:
    """Return the text of `templates/NAME.toml` with `values` filled in.

    The text is a new model's config.toml or a part of it.
    """
    return Template((TEMPLATES / f"{name}.toml").read_text("utf-8")).substitute(values)


def next_version(model: Path) -> int:
    return max(version_numbers(model), default=0) + 1


@contextmanager
def staged_version(model: Path, version: int) -> Iterator[Path]:
    """Yield an empty directory to build `version` in; publish it if the block succeeds.

    If the block raises, the directory is removed. Raises ExportError if the number is invalid, if
    the version exists at the start or the end, or if `model` is not writable.
    """
    if not VERSION.fullmatch(str(version)):
        raise ExportError(
            f"a version is a whole number from 1 to {LAST_VERSION}, received {version}"
        )
    if (model / str(version)).exists():
        raise ExportError(f"{model.name} already has a version {version}")
    with staging_name(model) as staging:
        try:
            staging.mkdir(parents=True)
        except OSError as error:
            raise ExportError(f"cannot write to {model}: {error.strerror}") from error
        yield staging
        for path in [*staging.iterdir(), staging]:
            _sync(path)
        try:
            staging.rename(model / str(version))
        except OSError as error:
            raise ExportError(
                f"version {version} of {model.name} was published meanwhile"
            ) from error
        _sync(model)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def published_version(model: Path, sha256: str, description: str = "") -> Path | None:
    """Return the directory of a version of `model` that was built from weights with this sha256.

    If `description` is not empty, it is the sha256 that the version's inference.yml must have.
    Returns None if there is no such version.
    """
    for number in version_numbers(model):
        try:
            manifest = json.loads((model / str(number) / "manifest.json").read_text("utf-8"))
            if manifest["weights"]["sha256"] == sha256 and (
                not description or manifest["files"]["inference.yml"]["sha256"] == description
            ):
                return model / str(number)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged version does not match; the server reports it
    return None


ORIGINS = ("trained here", "official release", "reference reconstruction", "random")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a version's weights come from; `/info` shows it with their sha256.

    `origin` is one of ORIGINS, or "foreign" in a sealed version. `preview` marks preliminary
    weights.
    """

    origin: str
    source: str
    licence: str
    preview: bool = False


def write_manifest(
    directory: Path,
    *,
    program: str,
    params: str | None,
    network: Mapping[str, Any] | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    origin: Origin,
    weights_sha256: str,
    programs: Sequence[DerivedProgram] = (),
) -> None:
    """Write the manifest of a version, with the digest of every file that something may open.

    Call it when all other files of `directory` are written. Equal versions give equal bytes,
    because a manifest has no times and no paths.
    """
    manifest = {
        "format": 2 if programs or program.endswith(ONNX_SUFFIX) else 1,
        "program": program,
        "params": params,
        "inputs": [asdict(spec) for spec in inputs],
        "outputs": [asdict(spec) for spec in outputs],
        "network": network,
        **_contents(directory, asdict(origin) | {"sha256": weights_sha256}),
    }
    if programs:
        manifest["programs"] = [asdict(program) for program in programs]
    replace_manifest(directory, manifest)


def write_composed_manifest(directory: Path, *, sample: str, answer: str, origin: Origin) -> None:
    """Write the manifest of a composed model's version. Call it when all files are written.

    `sample` and `answer` are the names of the files with the sample request and its answer.
    """
    manifest = {"format": COMPOSED_FORMAT, "sample": sample, "answer": answer}
    replace_manifest(directory, manifest | _contents(directory, asdict(origin)))


def _contents(directory: Path, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members `files`, `weights` and `built_with` of a version's manifest."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if not is_unused(entry))
    return {
        "files": {
            name: {
                "bytes": (directory / name).stat().st_size,
                "sha256": sha256_of(directory / name),
            }
            for name in names
        },
        "weights": weights,
        "built_with": {
            "paddlepool": __version__,
            "paddle": importlib.metadata.version("paddlepaddle"),
        },
    }


def replace_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of the version in `directory`, or replace it, in one step.

    It is written next to `directory` and renamed into it.
    """
    text = json.dumps(manifest, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    with staging_name(directory.parent) as staged:
        write_synced(staged, [text.encode()])
        staged.rename(directory / MANIFEST)
    sync_directory(directory)
