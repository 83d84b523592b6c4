"""Opens a composed model for a command: to seal, test or measure a version."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tqdm import tqdm

from paddlepool.contracts.errors import BackendError, ConfigError, ExportError, ModelNotFound
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import composed_itself
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.main import build_pipeline, build_workers
from paddlepool.making.export.publish import Origin, write_composed_manifest
from paddlepool.models.repository.layout import VERSION, ComposedFiles, ModelRepository
from paddlepool.models.repository.manifest import MANIFEST, ComposedManifest
from paddlepool.observability.metrics import Metrics
from paddlepool.settings.server import explain
from paddlepool.tasks.task import load_tasks, settings_class

ANSWER = "answer.json"
DRAIN_SECONDS = 5.0


def seal_composed(directory: Path, *, source: str, licence: str) -> Any:
    """Answer the sample request in a directory MODEL/VERSION; write the answer and a manifest.

    The directory must hold one file, the sample, and may hold an earlier answer. Returns the
    answer. The pipeline's check() must accept the answer after a conversion to JSON and back,
    because a server compares with the stored answer. Raises ExportError if it does not, if the
    directory is not named by a version's number, does not hold exactly one sample or has a manifest
    already. Raises the errors of opened_parts() and of the request.
    """
    where = f"{directory.parent.name}/{directory.name}"
    if not VERSION.fullmatch(directory.name):
        raise ExportError(f"{where} must be MODEL/VERSION: the version is a whole number from 1")
    if (directory / MANIFEST).exists():
        raise ExportError(f"{where} is sealed already; remove {MANIFEST} to seal it again")
    samples = [entry for entry in directory.iterdir() if entry.name != ANSWER and entry.is_file()]
    if len(samples) != 1:
        raise ExportError(
            f"{where} must hold one file, the sample request; found {len(samples)}: "
            f"{', '.join(sorted(path.name for path in samples)) or 'none'}"
        )
    [sample] = samples
    repository = ModelRepository(directory.parent.parent)
    files = ComposedFiles(
        name=directory.parent.name,
        version=int(directory.name),
        directory=directory,
        config=repository.config(directory.parent.name),
        manifest=ComposedManifest(
            files={}, weights={}, built_with={}, sample=sample.name, answer=ANSWER
        ),
    )
    answer, text = asyncio.run(_answer(repository, files, sample.read_bytes()))
    (directory / ANSWER).write_text(f"{text}\n", "utf-8")
    origin = Origin("foreign", source=source, licence=licence)
    write_composed_manifest(directory, sample=sample.name, answer=ANSWER, origin=origin)
    return answer


async def _answer(
    repository: ModelRepository, files: ComposedFiles, sample: bytes
) -> tuple[Any, str]:
    """Answer the sample request; return the answer and its JSON text.

    Raises ExportError if check() rejects the answer after a conversion to JSON and back, the errors
    of opened_parts(), and those of the request.
    """
    async with opened_parts(repository, files) as model:
        answer = await model.answer(sample)
        try:
            text = json.dumps(answer, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False)
            model.check(answer, json.loads(text))
        except (TypeError, ValueError, BackendError) as error:
            raise ExportError(
                f"{files.name}/{files.version}: answer_of of its pipeline must return what JSON "
                f"gives back (lists, no tuples; finite numbers): {error}"
            ) from error
        return answer, text


async def tested(repository: ModelRepository, files: ComposedFiles) -> str:
    """Test a sealed version with its sample request; return the result as a phrase.

    Raises the errors of opened_parts() and of ComposedModel.test().
    """
    async with opened_parts(repository, files) as model:
        await model.test()
    return "ok, the sample request got its answer"


async def answers(
    repository: ModelRepository,
    files: ComposedFiles,
    samples: Mapping[str, bytes],
    group: str | None,
) -> dict[str, Any]:
    """Return the answer to each sample request, by its name.

    `group` selects groups as in ComposedModel.parts_with(). Raises the errors of opened_parts() and
    of ComposedModel.answer().
    """
    async with opened_parts(repository, files) as model:
        return {
            name: await model.answer(sample, group)
            for name, sample in tqdm(samples.items(), desc=files.name, leave=False, disable=None)
        }


@asynccontextmanager
async def opened_parts(
    repository: ModelRepository, files: ComposedFiles
) -> AsyncIterator[ComposedModel]:
    """Load the parts of a composed model, and yield the model, which is not tested yet.

    All processes end with the block. Raises ConfigError if a setting is invalid, or if a part
    is missing or composed itself, and the errors of ModelRegistry.load() and ComposedModel.build().
    """
    tasks = load_tasks()
    metrics = Metrics(build={})
    try:
        settings = settings_class(tasks.values())()
    except ValidationError as error:
        raise ConfigError(explain(error)) from error
    workers = build_workers(settings, metrics, tasks.values())
    build = partial(build_pipeline, repository, metrics, tasks, workers)
    context = EngineContext(open_predictor=ProcessBackend(), observer=metrics)
    registry = ModelRegistry(
        repository, context=context, build_pipeline=build, drain_timeout=DRAIN_SECONDS
    )
    workers.codec.pool.start()
    try:
        for part, name in files.config.parts.items():
            try:
                config = repository.config(name)
            except ModelNotFound as error:
                raise ConfigError(
                    f"its part {part}, model {name}, is not in the repository"
                ) from error
            if config.parts:
                raise composed_itself(part, name)
        for name in dict.fromkeys(files.config.parts.values()):
            await registry.load(name)
        served = {model.name: model for model in registry.served()}
        parts = {part: served[name] for part, name in files.config.parts.items()}
        model = ComposedModel(files, parts, observer=metrics, clock=context.clock)
        try:
            await model.build(build)
            yield model
        finally:
            await model.close()
    finally:
        await registry.close()
        await workers.close()
