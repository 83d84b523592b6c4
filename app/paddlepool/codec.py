"""The names that a task's function in a codec process imports (docs/new-task.md).

They stay as docs/stability.md promises. `paddlepool.plugin` has those for the server's own process.
"""

from paddlepool.contracts import errors
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.tasks.codecs.picture import Pixels

__all__ = ["Array", "Pixels", "Tensors", "errors"]
