"""Declarations of tasks: loading them, their settings in one model, their pipelines."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from app.contracts.errors import ConfigError
from app.contracts.ports import Pipeline, ServedModelInfo
from app.tasks import PIPELINES
from app.tasks.task import Workers, build_pipeline, load_tasks, settings_class
from tests.ran import ran

TASK = load_tasks(PIPELINES)["segment"]
TOY = replace(TASK, build=lambda info, workers: cast(Any, f"pipeline of {info.name}"))


def info(pipeline: str | None) -> ServedModelInfo:
    return ServedModelInfo(
        name="m", version=1, directory=Path(), inputs=(), outputs=(), pipeline=pipeline
    )


def build(pipeline: str | None) -> Pipeline | None:
    workers = Workers(codec=None, text=ThreadPoolExecutor(1))  # type: ignore[arg-type]
    return build_pipeline(info(pipeline), tasks={"toy": TOY}, workers=workers)


@pytest.mark.parametrize(("task", "built"), [(None, None), ("toy", "pipeline of m")])
def test_a_pipeline_is_built_by_the_task_its_model_names(
    task: str | None, built: str | None
) -> None:
    assert build(task) == built


def test_an_unknown_pipeline_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'translate', there are toy"):
        build("translate")


class Twice(BaseModel):
    port: int = 1


def test_a_setting_is_declared_once() -> None:
    with pytest.raises(ValueError, match="Twice and Settings both declare port"):
        settings_class([replace(TOY, settings=Twice)])
    with pytest.raises(ValueError, match="both declare segment_max_bytes"):
        settings_class([TASK, TASK])


def test_a_codec_process_does_not_load_the_declaration() -> None:
    program = """
import sys
import app.tasks.segment.stages
print(sorted({"pydantic", "fastapi", "app.settings.server", "paddle"} & set(sys.modules)))
"""
    done = ran([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]"
