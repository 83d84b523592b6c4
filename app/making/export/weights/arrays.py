"""Reads named weight arrays from .npz and .safetensors files without unpickling anything."""

import zipfile
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from app.contracts.errors import ExportError

Arrays: TypeAlias = dict[str, NDArray[np.float32]]


def read_arrays(path: Path) -> Arrays:
    """Return every array of the file as float32, by name.

    Raises ExportError if the file is missing, has neither format, contains pickled objects, or
    contains a value that is not finite.
    """
    if not path.is_file():
        raise ExportError(f"no weights file at {path}")
    try:
        if path.suffix == ".safetensors":
            raw = dict(load_file(path))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                raw = {name: archive[name] for name in archive.files}
        else:
            raise ExportError(f"{path.name}: weights must be .npz or .safetensors")
    except (SafetensorError, ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path.name} cannot be read as {path.suffix[1:]}: {error}") from error
    arrays = {}
    for name, value in raw.items():
        if value.dtype.kind not in "fiu":
            raise ExportError(f"{path.name}: {name} has dtype {value.dtype}, expected numbers")
        arrays[name] = value.astype(np.float32)
        if not np.isfinite(arrays[name]).all():
            raise ExportError(f"{path.name}: {name} holds a value that is not finite")
    return arrays
