"""A derived program put into a version that is published, and its manifest replaced."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from app.export.publish import next_version, staged_version
from app.export.weights.release import sha256_of
from app.programs.derive import Derived
from app.repository.manifest import MANIFEST, read_manifest


def add_program(directory: Path, derived: Derived) -> None:
    """Publishes `derived` in a version; one of the same name goes.

    Both files are written in full beside the version and renamed into it, the manifest last. A
    server that reads the version between the two renames finds a file that is not listed yet, and
    reads it again because the manifest has changed. After a power cut in between,
    remove_unlisted() mends the version.
    """
    manifest = read_manifest(directory)
    text = json.loads((directory / MANIFEST).read_text("utf-8"))
    entry = derived.entry
    program = directory.parent / f".{directory.name}-{entry.program}"
    _write(program, derived.content)
    others = [each for each in manifest.programs if each.name != entry.name]
    text["format"] = 2
    text["programs"] = [asdict(each) for each in (*others, entry)]
    text["files"][entry.program] = {"bytes": len(derived.content), "sha256": sha256_of(program)}
    staged = directory.parent / f".{directory.name}-{MANIFEST}"
    words = json.dumps(text, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    _write(staged, words.encode())
    program.rename(directory / entry.program)
    staged.rename(directory / MANIFEST)


def publish_with(directory: Path, derived: Derived) -> Path:
    """A new version of the model: all of this one and `derived`. Raises ExportError."""
    model = directory.parent
    number = next_version(model)
    with staged_version(model, number) as staged:
        for name in (*read_manifest(directory).files, MANIFEST):
            shutil.copy(directory / name, staged / name)
        add_program(staged, derived)
    return model / str(number)


def remove_unlisted(directory: Path, name: str) -> None:
    """Take away a program that add_program() had no time to list."""
    if name not in read_manifest(directory).files:
        (directory / name).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
