"""The composition root: what it finds in a repository, and what it refuses."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from app.contracts.errors import ConfigError, WorkerCrashed
from app.contracts.ports import ServedModelInfo
from app.contracts.status import ModelStatus
from app.engine.registry.registry import ModelRegistry
from app.main import (
    PipelineBuilder,
    build_workers,
    check_names,
    create_app,
    find_default_models,
    read_configs,
    read_gauges,
)
from app.observability.metrics import Metrics
from app.pipelines import PIPELINES
from app.repository.config import InstanceGroup, ModelConfig
from app.repository.layout import ModelRepository
from app.settings import Settings
from app.workers import Workers
from tests.api.fakes import Client, FakeModel, FakeRegistry


def config(pipeline: str | None, *, default: bool = False) -> ModelConfig:
    group = InstanceGroup(name="one", backend="fake")
    return ModelConfig(
        pipeline=pipeline, default=default, default_group="one", instance_group=(group,)
    )


def write_model(repository: Path, name: str, text: str) -> None:
    (repository / name).mkdir(parents=True)
    (repository / name / "config.toml").write_text(text)


def test_the_first_model_by_name_is_a_task_s_default() -> None:
    """Tasks that no model names, and models without a task, have none."""
    configs = {"b": config("segment"), "a": config("segment"), "c": config(None)}
    assert find_default_models(configs, ["segment", "sentiment"]) == {"segment": "a"}


def test_a_model_can_say_that_it_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    """One that is added keeps its hands off the task, whatever it is called; doubt is logged."""
    chosen = {"a": config("segment"), "b": config("segment", default=True)}
    assert find_default_models(chosen, ["segment"]) == {"segment": "b"}
    assert not caplog.messages
    doubtful = {"a": config("segment"), "b": config("segment")}
    assert find_default_models(doubtful, ["segment"]) == {"segment": "a"}
    [line] = caplog.messages
    assert line == (
        "2 models of the task segment and none has default = true; "
        "'a' answers requests that name none"
    )


def test_a_broken_configuration_is_passed_over(tmp_path: Path) -> None:
    """The registry reports it; the others are known all the same."""
    write_model(tmp_path, "good", "")
    write_model(tmp_path, "bad", "nonsense = true")
    assert set(read_configs(ModelRepository(tmp_path))) == {"good"}


def test_a_missing_repository_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """ConfigError, which ends the start with exit code 3."""
    with pytest.raises(ConfigError, match="cannot be read"):
        create_app(Settings(model_repository=tmp_path / "nowhere"))


def test_a_missing_key_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Without it the server would be open to all; the error names the file."""
    settings = Settings(model_repository=tmp_path, api_keys_file=tmp_path / "keys")
    with pytest.raises(ConfigError, match=r"API_KEYS_FILE: .*keys: No such file"):
        create_app(settings)


@pytest.mark.parametrize(("task", "built"), [(None, None), ("toy", "toy pipeline")])
def test_a_pipeline_is_built_by_the_package_its_model_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str | None, built: str | None
) -> None:
    """A model without a task has none."""
    (tmp_path / "toy_task.py").write_text("def build(info, workers): return 'toy pipeline'")
    monkeypatch.syspath_prepend(str(tmp_path))
    workers = Workers(codec=None, text=ThreadPoolExecutor(1))  # type: ignore[arg-type]
    build = PipelineBuilder({"toy": "toy_task"}, workers)
    assert build(info(tmp_path, task)) == built


def test_an_unknown_pipeline_is_a_configuration_error(tmp_path: Path) -> None:
    """It names what there is."""
    workers = Workers(codec=None, text=ThreadPoolExecutor(1))  # type: ignore[arg-type]
    build = PipelineBuilder({"toy": "toy_task"}, workers)
    with pytest.raises(ConfigError, match="'translate', there are toy"):
        build(info(tmp_path, "translate"))


def info(directory: Path, pipeline: str | None) -> ServedModelInfo:
    return ServedModelInfo(
        name="m", version=1, directory=directory, inputs=(), outputs=(), pipeline=pipeline
    )


class CountedSettings(Settings):
    """Counts how often the keys are read."""

    reads: ClassVar[list[Path | None]] = []

    def keys(self) -> tuple[bytes, ...]:
        self.reads.append(self.api_keys_file)
        return super().keys()


def test_the_key_file_is_read_once(tmp_path: Path) -> None:
    """What was checked before the start is what requests are held against."""
    file = tmp_path / "keys"
    file.write_text("secret\n")
    settings = CountedSettings(model_repository=tmp_path, api_keys_file=file)
    app = create_app(settings, registry=cast(ModelRegistry, FakeRegistry(models=[])))
    assert settings.reads == [file]
    assert Client(app).get("/info").status_code == 401
    assert Client(app).get("/info", headers={"X-Api-Key": "secret"}).status_code == 200


def test_a_key_file_without_a_key_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """ConfigError, which ends the start with exit code 3."""
    (tmp_path / "keys").write_text("\n")
    settings = Settings(model_repository=tmp_path, api_keys_file=tmp_path / "keys")
    with pytest.raises(ConfigError, match="PADDLEPOOL_API_KEYS_FILE"):
        create_app(settings)


def test_codec_processes_are_in_the_metrics() -> None:
    """One that a picture ends is counted by its reason, and its successor as alive."""
    metrics = Metrics(build={})
    workers = build_workers(Settings(codec_processes=1), metrics)
    submit = partial(workers.codec.pool.submit, meta={}, deadline=time.monotonic() + 60)
    try:
        with pytest.raises(WorkerCrashed):
            submit("tests.codecs.faults:crash").result(timeout=60)
        submit("tests.codecs.faults:echo").result(timeout=60)
        shown = metrics.render().decode().splitlines()
    finally:
        workers.close()
    assert 'paddlepool_codec_restarts_total{reason="crashed"} 1.0' in shown
    assert "paddlepool_codec_processes 1.0" in shown


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


def test_an_unknown_task_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """No model will ever serve it; the error names those that there are."""
    settings = Settings(model_repository=tmp_path, default_models={"segmnt": "u2netp"})
    with pytest.raises(ConfigError, match=r"DEFAULT_MODELS.*'segmnt', there are segment, senti"):
        create_app(settings)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"default_models": {"segment": "u2netq"}}, "DEFAULT_MODELS: the repository has no model"),
        ({"default_models": {"segment": "e"}}, "DEFAULT_MODELS: the repository has no model 'e'"),
        ({"shadow_groups": ("natve",)}, "SHADOW_GROUPS: no model has a predictor group 'natve'"),
        ({"shadow_groups": ("main",)}, "SHADOW_GROUPS: no model has a predictor group 'main'"),
        ({"default_models": {"segment": "s"}, "shadow_groups": ("spare",)}, None),
        ({}, None),
    ],
    ids=["no model", "another task's", "no group", "a default group", "all there", "nothing"],
)
def test_what_the_repository_does_not_have_yet_is_told_at_start(
    caplog: pytest.LogCaptureFixture, chosen: dict[str, Any], words: str | None
) -> None:
    """It may come later by polling; a typing error would be noticed by nobody otherwise."""
    groups = tuple(InstanceGroup(name=name, backend="fake") for name in ("main", "spare"))
    configs = {
        name: ModelConfig(pipeline=task, default_group="main", instance_group=groups)
        for name, task in (("s", "segment"), ("e", "sentiment"))
    }
    check_names(Settings(**chosen), configs, tasks=PIPELINES)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (words is not None)
    assert words is None or words in told[0]
