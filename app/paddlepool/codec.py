"""The names that a package's functions for codec processes may import (docs/new-task.md).

docs/stability.md says how long they stay. `paddlepool.plugin` has the names for code that runs in
the server's own process.
"""

from paddlepool.contracts import errors
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.tasks.codecs.picture import Pixels

__all__ = ["Array", "Pixels", "Tensors", "errors"]
