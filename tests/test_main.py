"""The composition root: what it refuses before anything starts, and what it connects."""

import asyncio
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from paddlepool.contracts.errors import ConfigError, WorkerCrashed
from paddlepool.contracts.resources import memory_limit
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.process.start import Spares
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.main import build_workers, create_app
from paddlepool.observability.metrics import Metrics
from paddlepool.settings.server import Settings
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import Task, load_tasks, settings_class
from tests.model_files import write_config
from tests.service.api.fakes import Client, FakeRegistry, make_settings


def test_grpc_without_its_extra_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "paddlepool.service.grpc.server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(
        ConfigError, match=r"grpc is not installed: pip install 'paddlepool\[grpc\]'"
    ):
        create_app(Settings(model_repository=tmp_path, grpc_port=0))


def app_of(settings: Settings) -> Any:
    """The application over no model."""
    return create_app(settings, registry=cast(ModelRegistry, FakeRegistry(models=[])))


class CountedSettings(settings_class(load_tasks(PIPELINES).values())):  # type: ignore[misc]
    """Counts how often the keys are read."""

    reads: ClassVar[list[Path | None]] = []

    def keys(self) -> tuple[bytes, ...]:
        self.reads.append(self.api_keys_file)
        return super().keys()


def test_the_key_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("secret\n")
    settings = CountedSettings(model_repository=tmp_path, api_keys_file=file)
    app = app_of(settings)
    assert settings.reads == [file]
    assert Client(app).get("/info").status_code == 401
    assert Client(app).get("/info", headers={"X-Api-Key": "secret"}).status_code == 200


def registry_options(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> dict[str, Any]:
    """What the registry is opened with."""
    registry_arguments: dict[str, Any] = {}

    def registry(*_: object, **options: Any) -> None:
        registry_arguments.update(options)
        raise InterruptedError

    monkeypatch.setattr("paddlepool.main.ModelRegistry", registry)
    monkeypatch.setattr("paddlepool.main.build_workers", lambda *_: None)
    with pytest.raises(InterruptedError):
        create_app(settings)
    return registry_arguments


@pytest.mark.parametrize(("setting", "held"), [(0, memory_limit() // 4), (1_000, 1_000)])
def test_groups_on_demand_have_a_quarter_of_the_memory_unless_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: int, held: int
) -> None:
    settings = make_settings(model_repository=tmp_path, on_demand_memory_bytes=setting)
    context: EngineContext = registry_options(monkeypatch, settings)["context"]
    assert context.on_demand._max_bytes == held


def test_a_reload_waits_out_the_longest_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(model_repository=tmp_path, timeout_max_ms=120_000)
    assert registry_options(monkeypatch, settings)["drain_timeout"] > 120


@pytest.mark.parametrize(("name", "judge"), [("first", ""), ("second", "first")])
def test_the_replica_that_the_setting_names_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, judge: str
) -> None:
    controls: list[CanaryControl] = []

    def background(canaries: CanaryControl, *_: object) -> None:
        controls.append(canaries)
        raise InterruptedError

    monkeypatch.setattr("paddlepool.main._open_background", background)
    settings = make_settings(
        model_repository=tmp_path,
        replica=name,
        canary_judge="first",
        state_file=tmp_path / "choices.json",
    )
    with pytest.raises(InterruptedError):
        app_of(settings)
    assert [control.judge for control in controls] == [judge]


def test_codec_processes_are_warmed_up_for_tasks_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "digits", 'pipeline = "classify"')
    warmed: list[Task] = []

    def workers(_settings: object, _metrics: object, tasks: list[Task], _spares: object) -> None:
        warmed.extend(tasks)
        raise InterruptedError

    monkeypatch.setattr("paddlepool.main.build_workers", workers)
    with pytest.raises(InterruptedError):
        create_app(make_settings(model_repository=tmp_path))
    assert [task.warm_ups for task in warmed] == [("paddlepool.tasks.classify.stages:warm_up",)]


class FailingRegistry(FakeRegistry):
    """A registry with a fault that nobody has foreseen, after everything is loaded."""

    async def load_all(self) -> list[str]:
        return []

    def served(self) -> Any:
        raise RuntimeError("a bug")

    async def close(self) -> None:
        pass


async def test_a_background_task_that_fails_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(model_repository=tmp_path, codec_processes=1, prove_groups="off")
    app = create_app(settings, registry=cast(ModelRegistry, FailingRegistry()))
    async with app.router.lifespan_context(app), Client(app).session() as client:
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "load"])
        reply = await client.get("/v2/health/ready")
        assert reply.status_code == 503
        assert reply.json()["error"] == ("The background task 'load' has failed; the log says why.")
        assert (await client.get("/v2/health/live")).status_code == 200
    assert "the background task 'load' has failed" in caplog.text
    assert "Traceback" in caplog.text


class LoadingRegistry(FailingRegistry):
    async def load_all(self) -> list[str]:
        await asyncio.Event().wait()
        return []


async def test_a_stop_while_models_load_ends_the_processes_that_nobody_uses(tmp_path: Path) -> None:
    spares = Spares()
    spares.start({"UNUSED": "1"}, prepare="json", count=1)
    [(_, spare)] = spares._waiting
    settings = make_settings(model_repository=tmp_path, codec_processes=1, prove_groups="off")
    registry = cast(ModelRegistry, LoadingRegistry())
    app = create_app(settings, registry=registry, spares=spares)
    async with app.router.lifespan_context(app):
        assert spare.popen.returncode is None
    assert spare.popen.returncode == -signal.SIGKILL


async def test_codec_processes_are_in_the_metrics() -> None:
    metrics = Metrics(build={})
    workers = build_workers(Settings(codec_processes=1), metrics, tasks=())
    pool = workers.codec.pool
    submit = partial(pool.submit, meta={}, deadline=time.monotonic() + 60)
    pool.start()
    try:
        with pytest.raises(WorkerCrashed):
            await submit("tests.tasks.codecs.faults:crash")
        await submit("tests.tasks.codecs.faults:echo")
        lines = metrics.render()[0].decode().splitlines()
    finally:
        await workers.close()
    assert 'paddlepool_codec_restarts_total{reason="crashed"} 1.0' in lines
    assert "paddlepool_codec_processes 1.0" in lines


def test_settings_win_over_the_repository_s_default(tmp_path: Path) -> None:
    for name in "ab":
        write_config(tmp_path / name, 'pipeline = "segment"')
    for chosen, expected in (({}, "a"), ({"segment": "b"}, "b")):
        settings = make_settings(model_repository=tmp_path, default_models=chosen)
        assert Client(app_of(settings)).get("/info").json()["default_models"]["segment"] == expected


def test_a_shadow_group_that_no_model_has_is_told_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app_of(make_settings(model_repository=tmp_path, shadow_groups=("natve",)))
    assert any("'natve'" in line for line in caplog.messages)
