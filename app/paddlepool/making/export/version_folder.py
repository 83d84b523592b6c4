"""Finds the program in a version directory, which may be an unchanged downloaded folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from paddlepool.contracts.errors import ExportError
from paddlepool.models.repository.config import MODEL_NAME
from paddlepool.models.repository.layout import VERSION
from paddlepool.models.repository.manifest import MANIFEST, ONNX_SUFFIX, is_unused

FIRST_FORM = "__model__"
PROGRAMS, PARAMS = (".json", ".pdmodel"), ".pdiparams"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFolder:
    """The names of files in a version directory: the program, its parameters, and unused entries.

    `params` is None for a program without parameters. `onnx` is the file that ONNX Runtime and
    OpenVINO run in place of a Paddle program, if any. `unused` are the entries that nothing opens.
    """

    program: str
    params: str | None
    onnx: str | None
    unused: tuple[str, ...]


def read_folder(directory: Path) -> VersionFolder:
    """Find the only program of a directory MODEL/VERSION.

    An ONNX file beside a Paddle program does not count as a second one. Raises ExportError if the
    directory is missing or has another name, is sealed already, has no program or several, or has a
    link or special file that something would open.
    """
    where = f"{directory.parent.name}/{directory.name}"
    if not (
        directory.is_dir()
        and VERSION.fullmatch(directory.name)
        and MODEL_NAME.fullmatch(directory.parent.name)
    ):
        raise ExportError(
            f"{where} must be a directory MODEL/VERSION: a name of {MODEL_NAME.pattern} and a "
            "whole number from 1"
        )
    if (directory / MANIFEST).exists():
        raise ExportError(f"{where} is sealed already; remove {MANIFEST} to seal it again")
    with os.scandir(directory) as directory_entries:
        entries = sorted(directory_entries, key=lambda entry: entry.name)
    unused = [entry for entry in entries if is_unused(entry)]
    files = [directory / entry.name for entry in entries if entry not in unused]
    for entry in entries:
        if entry not in unused and not entry.is_file(follow_symlinks=False):
            raise ExportError(
                f"{where}: {entry.name} is a link or no regular file; put the file itself in its "
                "place (cp -L)"
            )
    networks = [path for path in files if path.suffix == ONNX_SUFFIX]
    programs = [path for path in files if path.suffix in PROGRAMS]
    chosen = [path for path in programs if path.with_suffix(PARAMS) in files]
    chosen = chosen or [path for path in programs if _is_program(path)]
    onnx = networks if len(chosen) == 1 else []
    if not chosen or len(networks) > 1:
        chosen = [*chosen, *networks]
    if not chosen and directory / FIRST_FORM in files:
        raise ExportError(
            f"{where}: {FIRST_FORM} is a program of Paddle 1; docs/sealing.md converts it"
        )
    if len(chosen) != 1:
        raise ExportError(
            f"{where} must hold one program: NAME.json or NAME.pdmodel with NAME{PARAMS}, or "
            f"NAME{ONNX_SUFFIX}, or one of both forms; "
            f"found {len(chosen)}: {', '.join(path.name for path in chosen) or 'none'}"
        )
    params = chosen[0].with_suffix(PARAMS)
    return VersionFolder(
        program=chosen[0].name,
        # Paddle saves no such file for a program without parameters.
        params=params.name if params in files else None,
        onnx=onnx[0].name if onnx else None,
        unused=tuple(entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in unused),
    )


def _is_program(path: Path) -> bool:
    """Return whether a .json or .pdmodel file is a program; a .json may be a tokenizer instead."""
    if path.suffix != ".json":
        return True
    try:
        content = json.loads(path.read_bytes())
        return isinstance(content, dict) and content["base_code"]["magic"] == "pir"
    except (OSError, ValueError, LookupError, TypeError):
        return False
