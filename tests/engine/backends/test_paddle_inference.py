"""The real predictor on a tiny graph: right, verified, replaced when struck, flat in memory."""

import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    ManifestError,
    PaddlepoolError,
    RunRefused,
)
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.engine.backends import paddle_inference
from paddlepool.engine.backends.paddle_inference import OPTIONS, SHAPES
from paddlepool.engine.backends.paddle_operators import operators_of
from paddlepool.engine.backends.process import ProcessBackend, ProcessPredictor
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.models.repository.layout import ModelFiles
from tests.engine.backends.test_process import opened_group
from tests.engine.fakes import PATIENCE, open_registry, soon
from tests.model_files import TINY, write_manifest
from tests.ran import ran

pytestmark = pytest.mark.paddle

LEGACY = Path(__file__).parents[2] / "making" / "export" / "legacy" / "model.pdmodel"


@pytest.fixture(scope="module", params=[True, False], ids=["onednn", "native"])
def predictor(tiny: ModelFiles, request: pytest.FixtureRequest) -> Iterator[ProcessPredictor]:
    with opened_group(tiny, "paddle_inference", onednn=request.param) as predictor:
        yield predictor


def image(rows: int, *, height: int = 8, width: int = 8) -> Tensors:
    random = np.random.default_rng(rows * 1000 + height * 10 + width)
    return {"image": random.normal(size=(rows, 3, height, width)).astype(np.float32)}


HOMELESS = ("unshare", "--user", "--map-user=54321", "env", "-u", "HOME", "PYTHONPATH=.")
OPENED = """
import sys
from pathlib import Path
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.models.repository.layout import ModelRepository
files = ModelRepository(Path(sys.argv[1])).read("tiny", 1)
files.selftest().opened(ProcessBackend(), files.spec(files.group(None))).close()
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None or ran([*HOMELESS, "true"], check=False).returncode != 0,
    reason="NOT TESTED: this system lets nobody be a user without an entry in /etc/passwd",
)
def test_a_user_without_a_home_or_a_name_is_served(tiny_model_repository: Path) -> None:
    """As in a container with any number for its user; Paddle itself would crash."""
    ran([*HOMELESS, sys.executable, "-c", OPENED, tiny_model_repository])


def test_the_python_package_of_the_framework_stays_out(predictor: ProcessPredictor) -> None:
    """Its modules would add 60 MiB. Python 3.13 has more of the extension's file in memory."""
    predictor.run(image(1), timeout=PATIENCE)
    assert predictor.resident_bytes() < (290 if sys.version_info < (3, 13) else 370) << 20


def test_memory_stays_flat_over_variable_shapes(predictor: ProcessPredictor) -> None:
    """600 runs of 48 shapes after as many for warming up: less than 8 MiB more."""
    shapes = [(rows, 8 + step, 40 - step) for rows in (1, 2, 3) for step in range(16)]

    def run_all(times: int) -> int:
        for _ in range(times):
            for rows, height, width in shapes:
                predictor.run(image(rows, height=height, width=width), timeout=PATIENCE)
        return predictor.resident_bytes()

    settled = run_all(4)
    assert run_all(12) - settled < 8 << 20


def faked(
    monkeypatch: pytest.MonkeyPatch, directory: Path | None = None, **options: object
) -> tuple[MagicMock, Any]:
    """Paddle's extension as a fake, and the handler of a predictor that is opened with it."""
    core = MagicMock()
    core.create_predictor.side_effect = lambda config: MagicMock(
        get_input_names=lambda: ["x"], get_output_names=lambda: ["y"], run=config.ran
    )
    core.AnalysisConfig.side_effect = lambda *_: MagicMock()
    monkeypatch.setattr(paddle_inference, "_load_core", lambda: core)
    monkeypatch.setattr(paddle_inference, "operators_of", lambda _: [])
    opening = {
        "directory": str(directory), "program": "p", "params": "q", "threads": 1,
        "inputs": [{"name": "x"}], "outputs": [{"name": "y"}], "options": options,
    }  # fmt: skip
    _, handle = paddle_inference.open_predictor(opening)
    return core, lambda *shape: handle({}, {"x": np.zeros(shape)}, ())


def test_after_many_shapes_the_predictor_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With capacity 0 oneDNN drops nothing by itself; shapes seen before count once."""
    for name in "pq":
        (tmp_path / name).write_bytes(b"verified")
    core, run = faked(monkeypatch, tmp_path, cache_capacity=0)
    for length in [*range(1, SHAPES + 1), *range(1, SHAPES + 1)]:
        run(1, length)
    assert core.create_predictor.call_count == 1
    run(2, 1)
    assert core.create_predictor.call_count == 2
    (tmp_path / "q").write_bytes(b"replaced")
    for length in range(2, SHAPES + 2):
        run(2, length)
    with pytest.raises(SystemExit, match="have changed"):
        run(2, SHAPES + 2)


def test_small_inputs_run_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows than `onednn_rows` go to a second predictor, whose oneDNN is off."""
    core, run = faked(monkeypatch, onednn_rows=2)
    for rows in (1, 2, 3):
        run(rows, 4)
    batches, single = (call.args[0] for call in core.create_predictor.call_args_list)
    assert (single.ran.call_count, batches.ran.call_count) == (1, 2)
    batches.enable_mkldnn.assert_called_once_with()
    single.disable_mkldnn.assert_called_once_with()


@pytest.mark.parametrize("onednn", [True, False], ids=["onednn", "native"])
def test_a_legacy_program_runs_in_the_ir_of_its_time(onednn: bool) -> None:
    """The new one makes other operators of it, which gave other numbers for some models."""
    core = MagicMock()
    opening = {"directory": LEGACY.parent, "program": LEGACY.name, "params": "p", "threads": 1}
    options = OPTIONS | {"onednn": onednn}
    configured = paddle_inference.configured(core, opening, options, operators_of(LEGACY))
    configured.enable_new_ir.assert_not_called()
    configured.enable_new_executor.assert_not_called()
    assert configured.enable_mkldnn.called == onednn


def test_shapes_that_share_weights_give_the_same_answers(tiny: ModelFiles) -> None:
    """Capacity 0 against 1, beyond the number of shapes after which the predictor is new."""
    two = [opened_group(tiny, "paddle_inference", cache_capacity=capacity) for capacity in (0, 1)]
    with two[0] as first, two[1] as second:
        for height in range(8, 8 + SHAPES + 2):
            shared, own = (
                p.run(image(1, height=height), timeout=PATIENCE) for p in (first, second)
            )
            np.testing.assert_allclose(shared["scores"], own["scores"], atol=1e-6)  # type: ignore[arg-type]


def test_what_the_framework_refuses_leaves_the_process_alive(predictor: ProcessPredictor) -> None:
    with pytest.raises(RunRefused) as refused:
        predictor.run({"image": np.zeros((1, 5, 8, 8), np.float32)}, timeout=PATIENCE)
    assert refused.value.library_text.startswith(
        "InvalidArgumentError: The number of input's channels"
    )
    assert "(at " not in refused.value.library_text
    assert "Traceback" not in refused.value.library_text
    assert predictor.run(image(1), timeout=PATIENCE)["scores"].shape == (1, 2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"options": {"mkldnn": True}}, ConfigError, "no option 'mkldnn'", id="option"),
        pytest.param({"options": {"onednn": 1}}, ConfigError, "must be a bool", id="type"),
        pytest.param(
            {"options": {"onednn": False, "onednn_rows": 2}},
            ConfigError,
            "onednn_rows needs onednn = true",
            id="rows without onednn",
        ),
        pytest.param(
            {"inputs": (TensorSpec("picture", "float32", (-1, 3, 8, 8)),)},
            BackendError,
            "takes .*image.*manifest says .*picture",
            id="input name",
        ),
        pytest.param({"outputs": TINY[1][:1]}, BackendError, "gives 2 outputs", id="output count"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny: ModelFiles, changes: dict[str, Any], error: type[PaddlepoolError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ProcessBackend()(replace(tiny.spec(tiny.group(None)), **changes))


@pytest.fixture
def repository(tiny_model_repository: Path, tmp_path: Path) -> Path:
    """A copy of the repository that the test may damage."""
    return Path(shutil.copytree(tiny_model_repository, tmp_path / "repository"))


@pytest.fixture
async def registry(repository: Path) -> AsyncIterator[ModelRegistry]:
    registry = open_registry(repository, ProcessBackend())
    yield registry
    await registry.close()


def _other_weights(version: Path) -> None:
    shutil.copy(version.parents[1] / "other.pdiparams", version / "inference.pdiparams")


def _half(version: Path) -> None:
    params = version / "inference.pdiparams"
    params.write_bytes(params.read_bytes()[: params.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_other_weights, id="other weights"),
        pytest.param(_half, id="half of the weights"),
        pytest.param(lambda v: (v / "inference.json").write_text("{}"), id="empty program"),
    ],
)
async def test_damage_with_the_right_hashes_is_caught_by_loading_or_the_self_test(
    registry: ModelRegistry, repository: Path, damage: Any
) -> None:
    """Paddle itself loads some of these and answers with garbage; version 1 serves on."""
    await registry.load("tiny")
    version = Path(shutil.copytree(repository / "tiny" / "1", repository / "tiny" / "2"))
    damage(version)
    write_manifest(version, TINY)
    with pytest.raises((BackendError, ManifestError)):
        await registry.load("tiny")
    states = {status.version: status.state for status in registry.index()}
    assert states == {1: "READY", 2: "UNAVAILABLE"}
    with registry.lease("tiny") as model:
        future = model.submit(image(1), deadline=soon())
        assert (await future).outputs["scores"].shape == (1, 2)
