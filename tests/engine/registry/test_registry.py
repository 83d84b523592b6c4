"""Loading, swapping, leasing and unloading of model versions."""

import asyncio
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import (
    BackendUnavailable,
    ConfigError,
    ManifestError,
    ModelNotFound,
    ModelNotReady,
    PaddlepoolError,
)
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.status import Choice
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.observability.metrics import Metrics
from tests.engine.fakes import (
    FakeFactory,
    Gate,
    doubled,
    eventually,
    infer,
    no_collections,
    open_registry,
    row,
    soon,
    wait_until,
    write_double,
)
from tests.model_files import add_to_config, write_config, write_model, write_version


class Bench:
    """Registries on one repository, and the factory of their predictors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.factory = FakeFactory()
        self.opened: list[ModelRegistry] = []

    def open(self, **options: Any) -> ModelRegistry:
        self.opened.append(open_registry(self.root, self.factory, **options))
        return self.opened[-1]

    async def serve(self, *versions: int, **options: Any) -> ModelRegistry:
        """Write these versions of `double` and load them."""
        write_double(self.root, *versions)
        registry = self.open(**options)
        await registry.load("double")
        return registry


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for registry in bench.opened:
        await registry.close()


def states(registry: ModelRegistry) -> dict[tuple[str, int | None], tuple[str, str]]:
    return {
        (status.name, status.version): (status.state, status.reason) for status in registry.index()
    }


async def test_the_key_of_a_removed_mechanism_loads(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that set express_instance stay valid; the log says once that it has no effect."""
    section = "[dynamic_batching]\n"
    config = write_double(bench.root) / "config.toml"
    config.write_text(config.read_text().replace(section, section + "express_instance = true\n"))
    registry = bench.open()
    await registry.load("double")
    assert (await infer(registry)).version == 1
    assert caplog.text.count("express_instance") == 1


async def test_a_request_keeps_its_version_through_a_reload(bench: Bench) -> None:
    registry = await bench.serve(1)
    with registry.lease("double") as held:
        write_version(bench.root / "double" / "2")
        loading = asyncio.create_task(registry.load("double"))
        while (await infer(registry)).version == 1:
            pass
        assert not loading.done()
        assert (await held.submit(row(1), deadline=soon())).version == 1
    await loading
    assert (await infer(registry)).version == 2


@pytest.mark.parametrize("reloads", [6, pytest.param(30, marks=pytest.mark.nightly)])
async def test_no_request_is_lost_across_reloads(bench: Bench, reloads: int) -> None:
    config = write_double(bench.root, 1, 2, count=2, queue=64) / "config.toml"
    text = config.read_text("utf-8")
    registry = bench.open()
    await registry.load("double")
    versions: list[int] = []

    async def client() -> None:
        while len(versions) < 100 or not reloaded:
            versions.append((await infer(registry)).version)

    reloaded = False
    clients = [asyncio.create_task(client()) for _ in range(8)]
    for turn in range(reloads):
        policy = f'[version_policy]\nkind = "specific"\nversions = [{1 + turn % 2}]\n'
        config.write_text(text + policy, "utf-8")
        await registry.load("double")
    reloaded = True
    await asyncio.gather(*clients)
    assert len(versions) >= 100
    assert set(versions) == {1, 2}


async def test_the_series_of_retired_versions_go(bench: Bench) -> None:
    """/metrics is as long after 20 versions as after one; a version that is adopted keeps its."""
    metrics = Metrics(build={})
    metrics.expect_model("double", ["main", "spare"])
    registry = await bench.serve(1, observer=metrics)

    def versions() -> set[str]:
        lines = metrics.render()[0].decode().splitlines()
        runs = [line for line in lines if line.startswith("paddlepool_predictor_infer_seconds_sum")]
        return {line.partition('version="')[2].partition('"')[0] for line in runs}

    for version in range(2, 21):
        assert (await infer(registry)).version == version - 1
        write_version(bench.root / "double" / str(version))
        await registry.load("double")
    assert (await infer(registry)).version == 20
    [served] = registry.served()
    assert await registry.adopt(served, Choice(group="spare", by="measured", reason="a test"))
    assert versions() == {"20"}
    await registry.unload("double")
    assert versions() == set()


async def test_a_bad_model_does_not_keep_the_others_from_loading(bench: Bench) -> None:
    registry = bench.open()
    await registry.load_all()
    assert not registry.ready()
    write_double(bench.root)
    write_model(bench.root / "broken", "nonsense = 1")
    write_config(bench.root / "empty", "")
    await registry.load_all()
    assert (await infer(registry)).version == 1
    rows = states(registry)
    refusal = "broken/config.toml: nonsense: unknown key"
    assert rows["broken", 1] == ("UNAVAILABLE", refusal)
    assert rows["empty", None] == ("UNAVAILABLE", "empty: no version with a manifest is published")
    assert [registry.ready(name) for name in (None, "double", "broken")] == [False, True, False]


async def test_a_repository_that_is_not_there_is_a_configuration_error(bench: Bench) -> None:
    """Start fails fast instead of serving nothing."""
    with pytest.raises(ConfigError, match="cannot be read"):
        await open_registry(bench.root / "absent", bench.factory).load_all()


async def test_unload_drains(bench: Bench) -> None:
    bench.factory.behaviour = gate = Gate()
    registry = await bench.serve(1)
    request = asyncio.create_task(infer(registry))
    await gate.entered()
    unloading = asyncio.create_task(registry.unload("double"))
    await eventually(lambda: not registry.served())
    with pytest.raises(ModelNotFound), registry.lease("double"):
        pass
    assert not unloading.done()
    gate.open()
    assert (await request).version == 1
    await unloading
    assert bench.factory.opened[0].closed.is_set()
    assert states(registry) == {("double", 1): ("UNAVAILABLE", "not loaded")}
    with pytest.raises(ModelNotFound):
        await registry.unload("double")


@pytest.mark.parametrize("change", ["replaced", "unloaded"])
async def test_a_version_that_ends_leaves_the_memory_at_once(bench: Bench, change: str) -> None:
    """Not when the collector next looks at what is old: its arrays are megabytes."""
    registry = await bench.serve(1)
    with registry.lease("double") as served:
        gone = weakref.ref(served.selftest.inputs["x"])
    del served
    with no_collections():
        await (registry.load if change == "replaced" else registry.unload)("double")
        assert gone() is None


async def test_a_model_that_failed_is_unloaded_or_forgotten(bench: Bench) -> None:
    """It is forgotten by the next load after its removal; nothing of it served."""
    registry = await bench.serve(1)
    write_model(bench.root / "more", "nonsense = 1")
    with pytest.raises(PaddlepoolError):
        await registry.load("more")
    assert states(registry)["more", 1][0] == "UNAVAILABLE"
    with pytest.raises(ModelNotReady), registry.lease("more"):
        pass
    await registry.unload("more")
    assert states(registry)["more", 1] == ("UNAVAILABLE", "not loaded")
    with pytest.raises(ModelNotFound):
        await registry.unload("more")
    with pytest.raises(PaddlepoolError):
        await registry.load("more")
    shutil.rmtree(bench.root / "more")
    with pytest.raises(PaddlepoolError):
        await registry.load("more")
    assert states(registry) == {("double", 1): ("READY", "")}
    with pytest.raises(ModelNotFound), registry.lease("more"):
        pass
    assert registry.ready()


async def test_a_model_whose_versions_are_gone_serves_on_until_it_is_unloaded(bench: Bench) -> None:
    registry = await bench.serve(1)
    shutil.rmtree(bench.root / "double" / "1")
    with pytest.raises(ManifestError):
        await registry.load("double")
    assert (await infer(registry)).version == 1
    [(version, (state, reason))] = states(registry).items()
    assert (version, state) == (("double", 1), "READY")
    assert reason.endswith("double: no version with a manifest is published")
    write_double(bench.root)
    await registry.load("double")
    assert states(registry) == {("double", 1): ("READY", "")}


@pytest.mark.parametrize("name", ["absent", "../double", "", "double\n", "DOUBLE", "double/1", "."])
async def test_an_unknown_name_is_not_found(bench: Bench, name: str) -> None:
    """Names are compared with what is loaded and never joined to a path unchecked."""
    registry = await bench.serve(1)
    with pytest.raises(ModelNotFound), registry.lease(name):
        pass
    with pytest.raises(ModelNotFound):
        await registry.load(name)
    assert registry.ready()
    assert set(states(registry)) == {("double", 1)}


async def test_a_pipeline_that_refuses_keeps_the_model_out(bench: Bench) -> None:
    async def refuse(info: ServedModelInfo) -> None:
        raise ConfigError(f"{info.name}: labels are missing")

    write_double(bench.root)
    registry = bench.open(build_pipeline=refuse)
    with pytest.raises(ConfigError):
        await registry.load("double")
    assert states(registry) == {("double", 1): ("UNAVAILABLE", "double: labels are missing")}
    assert bench.factory.opened == []


async def test_an_absurd_number_of_threads_is_refused(bench: Bench) -> None:
    """65 single-thread instances would need 65 processes on two cores: that is a mistake."""
    write_double(bench.root, count=64)
    config = bench.root / "double" / "config.toml"
    config.write_text(config.read_text("utf-8").replace("count = 64", "count = 33\nthreads = 2"))
    registry = bench.open(cores=2.0)
    with pytest.raises(ConfigError, match="66 threads on 2 cores, limit 64"):
        await registry.load("double")
    assert bench.factory.opened == []


async def test_nothing_is_left_behind_by_a_load_that_close_overtakes(bench: Bench) -> None:
    write_double(bench.root)
    bench.factory.selftest = gate = Gate()
    registry = bench.open()
    loading = asyncio.create_task(registry.load("double"))
    await gate.entered()
    await registry.close()
    gate.open()
    with pytest.raises(ModelNotReady):
        await loading
    assert registry.served() == ()
    assert bench.factory.opened[0].closed.is_set()


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def _truncate(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def _edit(version: Path, *, change: Callable[[dict[str, Any]], object]) -> None:
    path = version / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")


def _rename_params(manifest: dict[str, Any], new: str) -> None:
    manifest["files"][new] = manifest["files"].pop("inference.pdiparams")
    manifest["params"] = new


def _link(version: Path) -> None:
    params = version / "inference.pdiparams"
    target = version.parent.parent / "elsewhere.bin"
    params.rename(target)
    params.symlink_to(target)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "params missing": lambda v: (v / "inference.pdiparams").unlink(),
    "params cut at 99 %": lambda v: _truncate(v / "inference.pdiparams", 0.99),
    "params flipped": lambda v: _flip(v / "inference.pdiparams", 100),
    "params a link": _link,
    "params a directory": lambda v: (
        (v / "inference.pdiparams").unlink(),
        (v / "inference.pdiparams").mkdir(),
    ),
    "program missing": lambda v: (v / "inference.json").unlink(),
    "self-test unlisted": lambda v: (
        (v / "selftest.npz").unlink(),
        _edit(v, change=lambda m: m["files"].pop("selftest.npz")),
    ),
    "manifest empty": lambda v: _truncate(v / "manifest.json", 0),
    "manifest cut": lambda v: _truncate(v / "manifest.json", 0.9),
    "manifest not UTF-8": lambda v: _flip(v / "manifest.json", 5),
    "manifest not an object": lambda v: (v / "manifest.json").write_text("[]", "utf-8"),
    "manifest a link": lambda v: (
        (v / "manifest.json").rename(v.parent.parent / "m.json"),
        (v / "manifest.json").symlink_to(v.parent.parent / "m.json"),
    ),
    "an unlisted file": lambda v: (v / "more.bin").write_bytes(b"x"),
    "an unlisted link": lambda v: (v / "tokenizer.json").symlink_to(v / "inference.json"),
    "an unlisted pipe": lambda v: os.mkfifo(v / "pipe"),
}
EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "without params": lambda m: m["files"].pop("inference.pdiparams"),
    "with a wrong size": lambda m: m["files"]["inference.json"].update(bytes=1),
    "with ../": lambda m: _rename_params(m, "../1/inference.pdiparams"),
    "with an absolute name": lambda m: _rename_params(m, "/etc/passwd"),
    "with an unknown key": lambda m: m.update(extra=1),
    "with an unknown dtype": lambda m: m["inputs"][0].update(dtype="object"),
    "without inputs": lambda m: m.update(inputs=[]),
    "that names an input twice": lambda m: m.update(inputs=m["inputs"] * 2),
    "with an impossible shape": lambda m: m["inputs"][0].update(shape=[-2, 0]),
}
DAMAGE |= {f"manifest {name}": partial(_edit, change=change) for name, change in EDITS.items()}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_version_is_never_served(
    bench: Bench, damage: Callable[[Path], object]
) -> None:
    registry = await bench.serve(1)
    damage(write_version(bench.root / "double" / "2"))
    with pytest.raises(ManifestError):
        await registry.load("double")
    assert (await infer(registry)).version == 1
    state, reason = states(registry)["double", 2]
    assert state == "UNAVAILABLE"
    assert reason.startswith("double/2")
    assert [spec.directory.name for spec in bench.factory.specs] == ["1"]


async def test_what_nothing_opens_needs_no_entry(bench: Bench) -> None:
    """Hidden entries, subdirectories and documents of a folder as it was downloaded."""
    version = write_version(bench.root / "double" / "1")
    (version / ".cache" / "more").mkdir(parents=True)
    (version / ".link").symlink_to("/etc/passwd")
    for name in ("README", "notes.md", "model.pdiparams.info", "two words.onnx"):
        (version / name).write_bytes(b"x")
    registry = bench.open()
    await registry.load("double")
    assert (await infer(registry)).version == 1


@pytest.mark.parametrize("name", ["007", "abc", "0", "-3", "2.0", "２", ".staging-x", "3\n"])
async def test_only_plain_integers_are_versions(bench: Bench, name: str) -> None:
    """A directory with another name is not seen, however complete it is."""
    write_version(bench.root / "double" / name)
    registry = await bench.serve(1)
    assert states(registry) == {("double", 1): ("READY", "")}


async def test_links_are_no_models_and_no_versions(bench: Bench) -> None:
    """Nothing outside the repository is reached through a link."""
    outside = write_double(bench.root.with_name("outside"))
    registry = await bench.serve(1)
    (bench.root / "linked").symlink_to(outside)
    (bench.root / "double" / "2").symlink_to(outside / "1")
    await registry.load_all()
    assert set(states(registry)) == {("double", 1)}


async def test_only_a_reload_is_gentle(bench: Bench) -> None:
    """Later instances open one after another, and stand still while others need the cores."""
    write_double(bench.root, count=2)
    registry = bench.open()
    await registry.load("double")
    opening = threading.Lock()

    def alone(inputs: Tensors) -> Tensors:
        assert bench.factory.opened[-1].suspension is not None, (
            "it was settled before it was tested"
        )
        assert opening.acquire(blocking=False), "two instances were opened at the same time"
        time.sleep(0.01)
        opening.release()
        return doubled(inputs)

    bench.factory.selftest = alone
    await registry.load("double")
    pauses = bench.factory.pauses
    assert [pause is not None for pause in pauses] == [False, False, True, True]
    assert len(set(pauses)) == 2, "one suspension for everything that is opened"
    assert all(predictor.suspension is None for predictor in bench.factory.opened)


async def test_a_start_is_gentle_to_nobody(bench: Bench) -> None:
    """Although the models that it has loaded already answer: they all are waited for."""

    class Staggered(ModelRepository):
        def versions(self, name: str) -> tuple[int, ...]:
            if name == "second":
                wait_until(lambda: bool(registry.served()))
            return super().versions(name)

    for name in ("first", "second"):
        write_double(bench.root, name=name)
    registry = bench.open(repository=Staggered(bench.root))
    await registry.load_all()
    assert [model.name for model in registry.served()] == ["first", "second"]
    assert bench.factory.pauses == [None, None]


async def test_only_a_start_times_its_first_runs(bench: Bench) -> None:
    """Runs that stood still in between would have admission refuse what could be answered.

    Of a group's instances, only one times them.
    """
    add_to_config(write_double(bench.root, count=2), "[[warmup]]\nshapes = { x = [1, 5] }\n")
    registry = bench.open()
    await registry.load("double")
    await registry.load("double")
    runs = sorted(len(predictor.timeouts) for predictor in bench.factory.opened)
    assert runs == [1, 1, 1, 2]


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_group_that_this_machine_lacks_leaves_its_place(bench: Bench, pinned: bool) -> None:
    """As on ARM, where Paddle has no oneDNN; not where config.toml names the group."""
    directory = write_double(bench.root, 1, count=2)
    config = (directory / "config.toml").read_text("utf-8")
    if not pinned:
        config = config.replace('default_group = "main"', 'default_group = "auto"')
    write_config(directory, config + "options = { here = true }\n")

    def lacking(inputs: Tensors) -> Tensors:
        if not bench.factory.specs[-1].options:
            raise BackendUnavailable("onednn: this build of Paddle has no oneDNN")
        return doubled(inputs)

    bench.factory.selftest = lacking
    registry = bench.open()
    if pinned:
        with pytest.raises(BackendUnavailable, match="no oneDNN"):
            await registry.load("double")
        return
    await registry.load("double")
    assert (await infer(registry)).version == 1
    [served] = registry.served()
    groups = {status.name: (status.count, status.started) for status in served.groups()}
    assert groups == {"main": (2, False), "spare": (2, True)}
    assert served.choice.group == served.files.config.first_group == "spare"
    assert not served.files.config.group("main").candidate
