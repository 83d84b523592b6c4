"""Loading, swapping, leasing and unloading of model versions."""

import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.observability.metrics import Metrics
from tests.engine.driving import Loop
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    Gate,
    answer,
    doubled,
    no_collections,
    open_registry,
    row,
    soon,
    wait_until,
    write_double,
)
from tests.model_files import add_to_config, write_config, write_model, write_version


class Bench:
    """Registries on one repository, and what opens their predictors."""

    def __init__(self, loop: Loop, root: Path) -> None:
        self.root, self.loop = root, loop
        self.factory = FakeFactory()
        self.opened: list[Any] = []

    def open(self, *versions: int, **options: Any) -> Any:
        """On these versions of `double`: they are written and loaded, if any."""
        self.opened.append(open_registry(self.loop, self.root, self.factory, **options))
        if versions:
            write_double(self.root, *versions)
            self.opened[-1].load("double")
        return self.opened[-1]


@pytest.fixture
def bench(loop: Loop, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(loop, tmp_path)
    yield bench
    for registry in bench.opened:
        registry.close()


def states(registry: Any) -> dict[tuple[str, int | None], tuple[str, str]]:
    return {(each.name, each.version): (each.state, each.reason) for each in registry.index()}


def test_a_request_keeps_its_version_through_a_reload(bench: Bench) -> None:
    """A lease taken before the swap answers with the old version, one taken after with the new."""
    registry = bench.open(1)
    with ThreadPoolExecutor(1) as thread, registry.lease("double") as held:
        write_version(bench.root / "double" / "2")
        loading = thread.submit(registry.load, "double")
        while answer(registry).version == 1:
            pass
        assert not loading.done()
        result = held.submit(row(1), deadline=soon())
        assert result.result(timeout=PATIENCE).version == 1
    assert answer(registry).version == 2


@pytest.mark.parametrize("reloads", [6, pytest.param(30, marks=pytest.mark.nightly)])
def test_no_request_is_lost_across_reloads(bench: Bench, reloads: int) -> None:
    """100 requests by 8 clients while the model is reloaded back to back: all answered."""
    config = write_double(bench.root, 1, 2, count=2, queue=64) / "config.toml"
    text = config.read_text("utf-8")
    registry = bench.open()
    registry.load("double")
    reloaded = threading.Event()
    answers: list[int] = []

    def client(_: int) -> None:
        while len(answers) < 100 or not reloaded.is_set():
            answers.append(answer(registry).version)

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]
        try:
            for turn in range(reloads):
                policy = f'[version_policy]\nkind = "specific"\nversions = [{1 + turn % 2}]\n'
                config.write_text(text + policy, "utf-8")
                registry.load("double")
        finally:
            reloaded.set()
        for each in running:
            each.result(timeout=PATIENCE)
    assert len(answers) >= 100
    assert set(answers) == {1, 2}


def test_the_series_of_retired_versions_go(bench: Bench) -> None:
    """/metrics is as long after 20 versions as after one; a version that is adopted keeps its."""
    metrics = Metrics(build={})
    metrics.expect_model("double", ["main", "spare"])
    registry = bench.open(1, observer=metrics)

    def versions() -> set[str]:
        lines = metrics.render()[0].decode().splitlines()
        runs = [line for line in lines if line.startswith("paddlepool_predictor_infer_seconds_sum")]
        return {line.partition('version="')[2].partition('"')[0] for line in runs}

    for version in range(2, 21):
        assert answer(registry).version == version - 1
        write_version(bench.root / "double" / str(version))
        registry.load("double")
    assert answer(registry).version == 20
    [served] = registry.served()
    assert registry.adopt(served, Choice(group="spare", by="measured", reason="a test"))
    assert versions() == {"20"}
    registry.unload("double")
    assert versions() == set()


def test_a_bad_model_does_not_keep_the_others_from_loading(bench: Bench) -> None:
    """load_all() never raises for one model; the server is not ready until it is mended."""
    write_double(bench.root)
    write_model(bench.root / "broken", "nonsense = 1")
    write_config(bench.root / "empty", "")
    registry = bench.open()
    registry.load_all()
    assert answer(registry).version == 1
    found = states(registry)
    refusal = "broken/config.toml: nonsense: Extra inputs are not permitted"
    assert found["broken", 1] == ("UNAVAILABLE", refusal)
    assert found["empty", None] == ("UNAVAILABLE", "empty: no version with a manifest is published")
    assert [registry.ready(name) for name in (None, "double", "broken")] == [False, True, False]


def test_nothing_loaded_is_not_ready(bench: Bench) -> None:
    """An empty repository must not look healthy."""
    registry = bench.open()
    registry.load_all()
    assert not registry.ready()


def test_a_repository_that_is_not_there_is_a_configuration_error(bench: Bench) -> None:
    """Start fails fast instead of serving nothing."""
    with pytest.raises(ConfigError, match="cannot be read"):
        open_registry(bench.loop, bench.root / "absent", bench.factory).load_all()


def test_unload_drains(bench: Bench) -> None:
    """A request that holds the model is answered; new ones hear that it is not there."""
    bench.factory.behaviour = gate = Gate()
    registry = bench.open(1)
    with ThreadPoolExecutor(2) as threads:
        request = threads.submit(answer, registry)
        gate.wait_entered()
        unloading = threads.submit(registry.unload, "double")
        while registry.served():
            pass
        with pytest.raises(ModelNotFound), registry.lease("double"):
            pass
        assert not unloading.done()
        gate.open()
        assert request.result(timeout=PATIENCE).version == 1
        unloading.result(timeout=PATIENCE)
    assert bench.factory.opened[0].closed.is_set()
    assert states(registry) == {("double", 1): ("UNAVAILABLE", "not loaded")}
    with pytest.raises(ModelNotFound):
        registry.unload("double")


@pytest.mark.parametrize("change", ["replaced", "unloaded"])
def test_a_version_that_ends_leaves_the_memory_at_once(bench: Bench, change: str) -> None:
    """Not when the collector next looks at what is old: its arrays are megabytes."""
    registry = bench.open(1)
    with registry.lease("double") as served:
        gone = weakref.ref(served.selftest.inputs["x"])
    del served
    with no_collections():
        (registry.load if change == "replaced" else registry.unload)("double")
        assert gone() is None


def test_a_model_that_failed_and_is_removed_is_forgotten(bench: Bench) -> None:
    """By the next load of it; nothing of it served."""
    registry = bench.open(1)
    write_model(bench.root / "more", "nonsense = 1")
    with pytest.raises(PaddlepoolError):
        registry.load("more")
    assert states(registry)["more", 1][0] == "UNAVAILABLE"
    with pytest.raises(ModelNotReady), registry.lease("more"):
        pass
    shutil.rmtree(bench.root / "more")
    with pytest.raises(PaddlepoolError):
        registry.load("more")
    assert states(registry) == {("double", 1): ("READY", "")}
    with pytest.raises(ModelNotFound), registry.lease("more"):
        pass
    assert registry.ready()


def test_a_model_that_failed_can_be_unloaded(bench: Bench) -> None:
    """It is not served, but whoever wants it no longer need not hear of it again."""
    write_model(bench.root / "more", "nonsense = 1")
    registry = bench.open()
    with pytest.raises(ConfigError):
        registry.load("more")
    registry.unload("more")
    assert states(registry) == {("more", 1): ("UNAVAILABLE", "not loaded")}
    with pytest.raises(ModelNotFound):
        registry.unload("more")


def test_a_model_whose_versions_are_gone_serves_on_until_it_is_unloaded(bench: Bench) -> None:
    """A load that finds no version changes nothing; the index has one row, with the reason."""
    registry = bench.open(1)
    shutil.rmtree(bench.root / "double" / "1")
    with pytest.raises(ManifestError):
        registry.load("double")
    assert answer(registry).version == 1
    [(version, (state, reason))] = states(registry).items()
    assert (version, state) == (("double", 1), "READY")
    assert reason.endswith("double: no version with a manifest is published")


@pytest.mark.parametrize("name", ["absent", "../double", "", "double\n", "DOUBLE", "double/1", "."])
def test_an_unknown_name_is_not_found(bench: Bench, name: str) -> None:
    """Names are compared with what is loaded and never joined to a path unchecked."""
    registry = bench.open(1)
    with pytest.raises(ModelNotFound), registry.lease(name):
        pass
    with pytest.raises(ModelNotFound):
        registry.load(name)
    assert registry.ready()
    assert set(states(registry)) == {("double", 1)}


def test_a_pipeline_that_refuses_keeps_the_model_out(bench: Bench) -> None:
    """Its ConfigError is the reason, and no process was started for it."""

    async def refuse(info: ServedModelInfo) -> None:
        raise ConfigError(f"{info.name}: labels are missing")

    write_double(bench.root)
    registry = bench.open(build_pipeline=refuse)
    with pytest.raises(ConfigError):
        registry.load("double")
    assert states(registry) == {("double", 1): ("UNAVAILABLE", "double: labels are missing")}
    assert bench.factory.opened == []


def test_an_absurd_number_of_threads_is_refused(bench: Bench) -> None:
    """65 single-thread instances would need 65 processes on two cores: that is a mistake."""
    write_double(bench.root, count=64)
    config = bench.root / "double" / "config.toml"
    config.write_text(config.read_text("utf-8").replace("count = 64", "count = 33\nthreads = 2"))
    registry = bench.open(cores=2.0)
    with pytest.raises(ConfigError, match="66 threads on 2 cores, limit 64"):
        registry.load("double")
    assert bench.factory.opened == []


def test_nothing_is_left_behind_by_a_load_that_close_overtakes(bench: Bench) -> None:
    """A model that becomes ready after close() is closed again and not served."""
    write_double(bench.root)
    bench.factory.selftest = gate = Gate()
    registry = bench.open()
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(registry.load, "double")
        gate.wait_entered()
        registry.close()
        gate.open()
        assert isinstance(loading.exception(timeout=PATIENCE), ModelNotReady)
    assert registry.served() == ()
    assert bench.factory.opened[0].closed.is_set()


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def _truncate(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def _edit(version: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = version / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")


def _rename_entry(version: Path, new: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][new] = manifest["files"].pop("inference.pdiparams")
        manifest["params"] = new

    _edit(version, change)


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
        _edit(v, lambda m: m["files"].pop("selftest.npz")),
    ),
    "manifest empty": lambda v: _truncate(v / "manifest.json", 0),
    "manifest cut": lambda v: _truncate(v / "manifest.json", 0.9),
    "manifest not UTF-8": lambda v: _flip(v / "manifest.json", 5),
    "manifest not an object": lambda v: (v / "manifest.json").write_text("[]", "utf-8"),
    "manifest a link": lambda v: (
        (v / "manifest.json").rename(v.parent.parent / "m.json"),
        (v / "manifest.json").symlink_to(v.parent.parent / "m.json"),
    ),
    "manifest without params": lambda v: _edit(v, lambda m: m["files"].pop("inference.pdiparams")),
    "manifest with a wrong size": lambda v: _edit(
        v, lambda m: m["files"]["inference.json"].update(bytes=1)
    ),
    "manifest with ../": lambda v: _rename_entry(v, "../1/inference.pdiparams"),
    "manifest with an absolute name": lambda v: _rename_entry(v, "/etc/passwd"),
    "manifest with an unknown key": lambda v: _edit(v, lambda m: m.update(extra=1)),
    "manifest with an unknown dtype": lambda v: _edit(
        v, lambda m: m["inputs"][0].update(dtype="object")
    ),
    "manifest without inputs": lambda v: _edit(v, lambda m: m.update(inputs=[])),
    "manifest that names an input twice": lambda v: _edit(
        v, lambda m: m.update(inputs=m["inputs"] * 2)
    ),
    "manifest with an impossible shape": lambda v: _edit(
        v, lambda m: m["inputs"][0].update(shape=[-2, 0])
    ),
    "an unlisted file": lambda v: (v / "more.bin").write_bytes(b"x"),
    "an unlisted link": lambda v: (v / "tokenizer.json").symlink_to(v / "inference.json"),
    "an unlisted pipe": lambda v: os.mkfifo(v / "pipe"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_version_is_never_served(bench: Bench, damage: Callable[[Path], object]) -> None:
    """The old version goes on; the damaged one never reaches a predictor, and the index has why."""
    registry = bench.open(1)
    damage(write_version(bench.root / "double" / "2"))
    with pytest.raises(ManifestError):
        registry.load("double")
    assert answer(registry).version == 1
    state, reason = states(registry)["double", 2]
    assert state == "UNAVAILABLE"
    assert reason.startswith("double/2")
    assert [spec.directory.name for spec in bench.factory.specs] == ["1"]


def test_what_nothing_opens_needs_no_entry(bench: Bench) -> None:
    """Hidden entries, subdirectories and documents of a folder as it was downloaded."""
    version = write_version(bench.root / "double" / "1")
    (version / ".cache" / "more").mkdir(parents=True)
    (version / ".link").symlink_to("/etc/passwd")
    for name in ("README", "notes.md", "model.pdiparams.info", "two words.onnx"):
        (version / name).write_bytes(b"x")
    registry = bench.open()
    registry.load("double")
    assert answer(registry).version == 1


@pytest.mark.parametrize("name", ["007", "abc", "0", "-3", "2.0", "２", ".staging-x", "3\n"])
def test_only_plain_integers_are_versions(bench: Bench, name: str) -> None:
    """A directory with another name is not seen, however complete it is."""
    write_version(bench.root / "double" / name)
    registry = bench.open(1)
    assert states(registry) == {("double", 1): ("READY", "")}


def test_links_are_no_models_and_no_versions(bench: Bench) -> None:
    """Nothing outside the repository is reached through a link."""
    outside = write_double(bench.root.with_name("outside"))
    registry = bench.open(1)
    (bench.root / "linked").symlink_to(outside)
    (bench.root / "double" / "2").symlink_to(outside / "1")
    registry.load_all()
    assert set(states(registry)) == {("double", 1)}


def test_only_a_reload_is_gentle(bench: Bench) -> None:
    """At start nobody is served whom it could disturb; later, instances open one after another,
    and stand still while others need the cores until they are warm."""
    write_double(bench.root, count=2)
    registry = bench.open()
    registry.load("double")
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
    registry.load("double")
    pauses = bench.factory.pauses
    assert [pause is not None for pause in pauses] == [False, False, True, True]
    assert len(set(pauses)) == 2, "one suspension for everything that is opened"
    assert all(predictor.suspension is None for predictor in bench.factory.opened)


def test_a_start_is_gentle_to_nobody(bench: Bench) -> None:
    """Although the models that it has loaded already answer: they all are waited for."""

    class Staggered(ModelRepository):
        def versions(self, name: str) -> tuple[int, ...]:
            if name == "second":
                wait_until(lambda: bool(registry.served()))
            return super().versions(name)

    for name in ("first", "second"):
        write_double(bench.root, name=name)
    registry = bench.open(repository=Staggered(bench.root))
    registry.load_all()
    assert [model.name for model in registry.served()] == ["first", "second"]
    assert bench.factory.pauses == [None, None]


def test_only_a_start_times_its_first_runs(bench: Bench) -> None:
    """Runs that stood still in between would have admission refuse what could be answered."""
    add_to_config(write_double(bench.root), "[[warmup]]\nshapes = { x = [1, 5] }\n")
    registry = bench.open()
    registry.load("double")
    registry.load("double")
    assert [len(predictor.timeouts) for predictor in bench.factory.opened] == [2, 1]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_group_that_this_machine_lacks_leaves_its_place(bench: Bench, pinned: bool) -> None:
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
            registry.load("double")
        return
    registry.load("double")
    assert answer(registry).version == 1
    [served] = registry.served()
    groups = {status.name: (status.count, status.started) for status in served.groups()}
    assert groups == {"main": (2, False), "spare": (2, True)}
    assert served.choice.group == served.files.config.first_group == "spare"
    assert not served.files.config.group("main").candidate
