"""Texts to engine jobs and logits to tags, for one model version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor

from pydantic import BaseModel, ConfigDict

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Finished, Prepared, ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.models.repository.config import parse_parameters
from tests.tasks.tagger.scripts import SCRIPTS, shares, tags_of


class Parameters(BaseModel):
    """`[parameters]` of config.toml: how the tags are called, in the order of the logits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: tuple[str, ...]


class TaggerPipeline:
    """Pipeline port; a payload is one text."""

    def __init__(self, parameters: Parameters, executor: Executor) -> None:
        self._parameters = parameters
        self._executor = executor

    async def prepare(self, payload: str, *, deadline: float) -> Prepared:
        del deadline  # a text of some KiB takes a millisecond
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._prepare, payload)

    async def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Finished:
        del prepared, deadline
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._finish, outputs)

    def close(self) -> None:
        """Ends nothing: the executor is the server's."""

    def _prepare(self, text: str) -> Prepared:
        begin = time.perf_counter()
        job = {"shares": shares(text)}
        return Prepared(jobs=(job,), state=None, stages={"preprocess": time.perf_counter() - begin})

    def _finish(self, outputs: Sequence[Tensors]) -> Finished:
        begin = time.perf_counter()
        [logits] = outputs[0].values()
        value = tags_of(logits, self._parameters.tags)
        return Finished(value=value, stages={"postprocess": time.perf_counter() - begin})


def open_pipeline(info: ServedModelInfo, *, executor: Executor) -> TaggerPipeline:
    """Raises ConfigError where the model has other tensors or tags than this task's."""
    parameters = parse_parameters(info, Parameters)
    if [spec.shape[1:] for spec in (*info.inputs, *info.outputs)] != [(len(SCRIPTS),)] * 2:
        raise ConfigError(f"{info.name}: expected one tensor in and one out, [texts, 5]")
    if len(parameters.tags) != len(SCRIPTS):
        raise ConfigError(f"{info.name}: {len(parameters.tags)} tags for {len(SCRIPTS)} scripts")
    return TaggerPipeline(parameters, executor)
