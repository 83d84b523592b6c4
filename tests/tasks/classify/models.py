"""Classifiers and contexts for the tests of `/classify`."""

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from paddlepool.contracts.ports import WHOLE, RequestContext, ServedModelInfo
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.tasks.codecs.pool import Codecs

INFERENCE_YML = """
Global:
  model_name: PP-LCNet_x1_0
PreProcess:
  transform_ops:
  - ResizeImage:
      resize_short: 40
  - CropImage:
      size: 32
  - NormalizeImage:
      channel_num: 3
      mean: [0.485, 0.456, 0.406]
      order: ''
      scale: 0.00392156862745098
      std: [0.229, 0.224, 0.225]
  - ToCHWImage:
PostProcess:
  Topk:
    topk: 2
    label_list: [cat, dog]
"""


def model(
    *shape: int,
    classes: Sequence[int] = (3,),
    directory: Path = Path("/nowhere/1"),
    dtype: str = "float32",
    **parameters: Any,
) -> ServedModelInfo:
    """A model with the input (-1, *shape) and the output (-1, *classes)."""
    return ServedModelInfo(
        name="m",
        version=1,
        directory=directory,
        inputs=(TensorSpec("x", dtype, (-1, *shape)),),
        outputs=(TensorSpec("y", "float32", (-1, *classes)),),
        parameters=parameters,
    )


class FunctionCodecs:
    """Runs a task's function in this process, on one picture; `arrays` replace its own."""

    def __init__(self, picture: Any, arrays: Tensors | None = None) -> None:
        self.picture = picture
        self.arrays = arrays or {}

    @property
    def codecs(self) -> Codecs:
        return cast(Codecs, self)

    async def read_picture(
        self, body: bytes, function: str, values: Mapping[str, Any], context: RequestContext
    ) -> Tensors:
        return {**pkgutil.resolve_name(function)(self.picture, values), **self.arrays}


@dataclass(kw_only=True)
class OutputContext(RequestContext):
    """A request to a model that always returns the same outputs."""

    outputs: Mapping[str, Any]

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        self.jobs = jobs
        return [{name: np.asarray(value) for name, value in self.outputs.items()}]
