"""Texts to engine jobs and logits to tags, for one model version."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from pydantic import BaseModel, ConfigDict

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import RequestContext, ServedModelInfo
from paddlepool.models.repository.config import parse_parameters
from tests.tasks.tagger.scripts import SCRIPTS, Tag, shares, tags_of


class Parameters(BaseModel):
    """`[parameters]` of config.toml: how the tags are called, in the order of the logits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: tuple[str, ...]


class TaggerPipeline:
    """Pipeline port; a payload is one text."""

    def __init__(self, parameters: Parameters, executor: Executor) -> None:
        self._parameters = parameters
        self._executor = executor

    async def run(self, payload: str, context: RequestContext) -> list[Tag]:
        loop = asyncio.get_running_loop()
        with context.stage("preprocess"):
            job = {"shares": await loop.run_in_executor(self._executor, shares, payload)}
        [outputs] = await context.infer([job])
        [logits] = outputs.values()
        tags = self._parameters.tags
        with context.stage("postprocess"):
            return await loop.run_in_executor(self._executor, tags_of, logits, tags)

    def close(self) -> None:
        """Ends nothing: the executor is the server's."""


def open_pipeline(info: ServedModelInfo, *, executor: Executor) -> TaggerPipeline:
    """Raises ConfigError where the model has other tensors or tags than this task's."""
    parameters = parse_parameters(info, Parameters)
    if [spec.shape[1:] for spec in (*info.inputs, *info.outputs)] != [(len(SCRIPTS),)] * 2:
        raise ConfigError(f"{info.name}: expected one tensor in and one out, [texts, 5]")
    if len(parameters.tags) != len(SCRIPTS):
        raise ConfigError(f"{info.name}: {len(parameters.tags)} tags for {len(SCRIPTS)} scripts")
    return TaggerPipeline(parameters, executor)
