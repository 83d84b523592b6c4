"""Declarations of tasks: loading them, and their settings in one model."""

import sys
from dataclasses import replace

import pytest
from pydantic import BaseModel

from paddlepool.contracts.errors import ConfigError
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, settings_class
from tests.ran import ran

TASK = load_tasks(PIPELINES)["segment"]


class Twice(BaseModel):
    port: int = 1


def test_a_setting_is_declared_once() -> None:
    with pytest.raises(ConfigError, match="Twice and Settings both declare port"):
        settings_class([replace(TASK, settings=Twice)])
    with pytest.raises(ConfigError, match="both declare segment_max_bytes"):
        settings_class([TASK, TASK])


def test_a_codec_process_does_not_load_the_declaration() -> None:
    program = """
import sys
import paddlepool.tasks.segment.stages
print(sorted({"pydantic", "fastapi", "paddlepool.settings.server", "paddle"} & set(sys.modules)))
"""
    done = ran([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]"
