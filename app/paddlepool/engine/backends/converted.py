"""Programs that were converted to ONNX, kept for the other predictors of one command.

Sealing opens several groups of engines that run ONNX. Without this, each of their processes would
convert the same Paddle program again.
"""

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paddlepool.contracts.ports import PredictorSpec
from paddlepool.models.repository.files import content_digest, open_plain_file
from paddlepool.models.repository.manifest import ONNX_BACKENDS

CONVERSION = "converted.onnx"
"""Name of the file that a predictor writes, in a directory of its own."""


def is_converted(spec: PredictorSpec) -> bool:
    """Whether the program of a predictor has to be converted to ONNX."""
    return spec.backend in ONNX_BACKENDS and spec.format != "onnx"


@dataclass(frozen=True, slots=True)
class ConvertedPrograms:
    """ONNX programs in `directory`, to which nothing else writes. With None, none is kept."""

    directory: Path | None = None

    def path(self, spec: PredictorSpec) -> Path | None:
        """Return the file of a predictor's converted program, which need not exist.

        Its name is a digest of the program and its weights. Returns None without a `directory`, for
        programs that are not converted, and if a file cannot be read.
        """
        if self.directory is None or not is_converted(spec):
            return None
        name = hashlib.sha256()
        try:
            for file in filter(None, (spec.program, spec.params)):
                name.update(content_digest(spec.directory / file))
        except OSError:
            return None
        return self.directory / name.hexdigest()

    def keep(self, path: Path, conversion: Path) -> None:
        """Copy the program that a predictor wrote to `path`; without one, do nothing."""
        partial = path.with_suffix(".partial")
        with contextlib.suppress(OSError):
            with open_plain_file(conversion) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
            partial.replace(path)


@contextlib.contextmanager
def converted_once() -> Iterator[ConvertedPrograms]:
    """Yield programs in a temporary directory, which is removed after the block."""
    with tempfile.TemporaryDirectory(prefix="paddlepool-") as directory:
        yield ConvertedPrograms(Path(directory))
