"""The composition root: what it finds in a repository, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from app.engine.config import InstanceGroup, ModelConfig
from app.engine.ports import ServedModelInfo
from app.engine.registry import ModelRegistry
from app.engine.repository import ModelRepository
from app.engine.status import ModelStatus
from app.errors import ConfigError
from app.main import PipelineBuilder, create_app, find_default_models, read_configs, read_gauges
from app.settings import Settings
from app.workers import Workers
from tests.api.fakes import Client, FakeModel, FakeRegistry


def config(pipeline: str | None) -> ModelConfig:
    group = InstanceGroup(name="one", backend="fake")
    return ModelConfig(pipeline=pipeline, default_group="one", instance_group=(group,))


def write_model(repository: Path, name: str, text: str) -> None:
    (repository / name).mkdir(parents=True)
    (repository / name / "config.toml").write_text(text)


def test_the_first_model_by_name_is_a_task_s_default() -> None:
    """Tasks that no model names, and models without a task, have none."""
    configs = {"b": config("segment"), "a": config("segment"), "c": config(None)}
    assert find_default_models(configs, ["segment", "sentiment"]) == {"segment": "a"}


def test_a_broken_configuration_is_passed_over(tmp_path: Path) -> None:
    """The registry reports it; the others are known all the same."""
    write_model(tmp_path, "good", "")
    write_model(tmp_path, "bad", "nonsense = true")
    assert set(read_configs(ModelRepository(tmp_path))) == {"good"}


def test_a_missing_repository_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """ConfigError, which ends the start with exit code 3."""
    with pytest.raises(ConfigError, match="cannot be read"):
        create_app(Settings(model_repository=tmp_path / "nowhere"))


@pytest.mark.parametrize(("task", "built"), [("", None), ('pipeline = "toy"', "toy pipeline")])
def test_a_pipeline_is_built_by_the_package_its_model_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, built: str | None
) -> None:
    """A model without a task has none."""
    (tmp_path / "toy_task.py").write_text("def build(info, workers): return 'toy pipeline'")
    monkeypatch.syspath_prepend(str(tmp_path))
    write_model(tmp_path / "models", "m", task)
    assert builder(tmp_path / "models")(info(tmp_path)) == built


def test_an_unknown_pipeline_is_a_configuration_error(tmp_path: Path) -> None:
    """It names what there is."""
    write_model(tmp_path / "models", "m", 'pipeline = "translate"')
    with pytest.raises(ConfigError, match="'translate', there are toy"):
        builder(tmp_path / "models")(info(tmp_path))


def builder(repository: Path) -> PipelineBuilder:
    workers = Workers(codec=None, text=ThreadPoolExecutor(1))  # type: ignore[arg-type]
    return PipelineBuilder(ModelRepository(repository), {"toy": "toy_task"}, workers)


def info(directory: Path) -> ServedModelInfo:
    return ServedModelInfo(name="m", version=1, directory=directory, inputs=(), outputs=())


def test_gauges_are_read_from_what_is_served() -> None:
    """One entry a version, one a group in it; a model that could not be loaded is not ready."""
    broken = ModelStatus(name="m2", version=4, state="UNAVAILABLE", reason="broken")
    registry = FakeRegistry(
        models=[FakeModel(), FakeModel(version=2, is_ready=False)], failed=[broken]
    )
    first, second, third = read_gauges(cast(ModelRegistry, registry))
    assert (first.model, first.version, first.ready) == ("m1", 1, True)
    assert (second.version, second.ready) == (2, False)
    assert (third.model, third.version, third.ready, third.groups) == ("m2", 4, False, ())
    [group] = first.groups
    assert (group.queue_depth, group.inflight, group.resident_bytes) == (3, 1, 1000)
    assert (group.default, group.queue_limit) == (True, 32)


def test_settings_win_over_the_repository_s_default(tmp_path: Path) -> None:
    """A task's model can be chosen by the operator."""
    write_model(tmp_path, "a", 'pipeline = "segment"')
    write_model(tmp_path, "b", 'pipeline = "segment"')
    registry = cast(ModelRegistry, FakeRegistry(models=[]))
    for chosen, expected in (({}, "a"), ({"segment": "b"}, "b")):
        settings = Settings(model_repository=tmp_path, default_models=chosen)
        app = create_app(settings, registry=registry)
        assert Client(app).get("/info").json()["default_models"]["segment"] == expected
