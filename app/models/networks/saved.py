"""Saved static programs, loaded as layers."""

import warnings
from pathlib import Path
from typing import Any

import paddle

from app.contracts.errors import BackendError
from app.models.repository.manifest import PICKLED

PROGRAM, PARAMS = "inference.json", "inference.pdiparams"


def load_program(path: Path) -> Any:
    """Load a saved program as a layer, by its path without a suffix.

    Raises BackendError if there is a file *.info next to the program. Paddle 2 wrote such pickles;
    `paddle.jit.load` would unpickle one and run any code in it.
    """
    if found := sorted(each.name for each in path.parent.glob(f"*{PICKLED}")):
        raise BackendError(f"{found[0]} is a pickle, which Paddle would load: remove it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return paddle.jit.load(str(path))


def load_parameters(directory: Path) -> dict[str, Any]:
    """The float32 parameters of a saved program by structured name, ready for `set_state_dict`."""
    program = load_program(directory / PROGRAM.removesuffix(".json"))
    # Loading appends an index to every parameter's name.
    return {
        parameter.name.rpartition("_")[0]: parameter.astype("float32")
        for parameter in program.parameters()
    }
