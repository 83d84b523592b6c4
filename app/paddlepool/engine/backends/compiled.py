"""Compiled programs of OpenVINO, stored between starts.

A predictor without a stored program compiles its own and exports it while it is being opened,
before it gets the first request. The server copies the export into the store. Of the store, a
predictor can read the one file that it opens, and write none: a process trusts the program that it
imports.
"""

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.resources import LIBRARY_SWITCHES, processor
from paddlepool.models.repository.files import content_digest, open_plain_file, write_atomically

FOLDER = "compiled"
EXPORT = "compiled.blob"
"""Name of the file that a predictor exports, in a directory of its own."""

SOURCES = ("onnx.py", "openvino_heads.py", "openvino_integers.py", "openvino_rules.py")
"""Files of this package that decide what OpenVINO compiles."""
MAX_FILES = 32
MAX_BYTES = 1 << 30
DIGEST_LINE = 2 * hashlib.sha256().digest_size + 1
"""Length of the first line of a stored file: the digest of what follows, in hexadecimal digits."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompiledPrograms:
    """Up to MAX_FILES compiled programs in `directory`; those used least recently are removed."""

    directory: Path | None = None
    """None: nothing is stored."""

    @classmethod
    def beside(cls, state: Path | None) -> Self:
        """Return those beside the state file; None stores nothing."""
        return cls(None if state is None else state.parent / FOLDER)

    def path(self, spec: PredictorSpec) -> Path | None:
        """Return the file of a predictor's compiled program, which need not exist.

        Its name is a digest of everything that decides the result: the program, the options, the
        threads, the engine with its settings, rules and environment, and the processor. Returns
        None without a `directory`, for backends that compile nothing, for programs that are
        converted first, and if the program cannot be read or OpenVINO is not installed.
        """
        if self.directory is None or spec.backend != "openvino" or spec.format != "onnx":
            return None
        name = hashlib.sha256()
        try:
            engine = version("openvino")
            sources = map(Path(__file__).with_name, SOURCES)
            for file in (spec.directory / spec.program, *sources):
                name.update(content_digest(file))
        except (OSError, PackageNotFoundError):
            return None
        switches = {key: os.environ[key] for key in os.environ if key.startswith(LIBRARY_SWITCHES)}
        facts = [spec.program_name, dict(spec.options), spec.threads, engine, switches]
        name.update(json.dumps([facts, asdict(processor())], sort_keys=True).encode())
        return self.directory / name.hexdigest()

    def any(self) -> bool:
        """Whether any program is stored."""
        try:
            return self.directory is not None and any(self.directory.iterdir())
        except OSError:
            return False

    def intact(self, path: Path) -> bool:
        """Whether the file exists and is as it was stored; if so, mark it as used now."""
        try:
            with open_plain_file(path) as stream:
                expected = stream.read(DIGEST_LINE)
                whole = _digest_line(hashlib.file_digest(stream, "sha256")) == expected
            if whole:
                os.utime(path)
        except OSError:
            return False
        return whole

    def store(self, path: Path, export: Path) -> None:
        """Copy a predictor's export to `path`, if there is one of at most MAX_BYTES.

        Only logs an OSError.
        """
        try:
            with open_plain_file(export) as stream:
                program = stream.read(MAX_BYTES + 1)
        except OSError:
            return
        if len(program) > MAX_BYTES:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, _digest_line(hashlib.sha256(program)) + program)
            files = [(file.stat().st_mtime_ns, file) for file in path.parent.iterdir()]
            for _, file in sorted(files)[:-MAX_FILES]:
                file.unlink()
        except OSError as error:
            # No warning: the file beside this folder, which cannot be written either, has its own.
            log.info("a compiled program cannot be stored: %s", error.strerror or error)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _digest_line(digest: Any) -> bytes:
    return f"{digest.hexdigest()}\n".encode()
