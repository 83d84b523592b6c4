"""The backends beside Paddle Inference: the same outputs, and clear refusals."""

import os
import pickle
import pkgutil
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError, BackendUnavailable, ConfigError, RunRefused
from paddlepool.contracts.tensors import largest_difference
from paddlepool.engine.backends import BACKENDS
from paddlepool.engine.backends.handler import check_bfloat16
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from paddlepool.observability.build_info import build_info
from tests.engine.backends.test_process import opened_group
from tests.engine.fakes import PATIENCE
from tests.ran import needs_converter, ran

pytestmark = pytest.mark.paddle

MODELS = Path(__file__).parents[3] / "model_repo"
LEGACY = Path(__file__).parents[2] / "making" / "export" / "legacy" / "model"
FAST_BFLOAT16 = "bf16" in build_info()["cpu_flags"]
CONVERTED = [pytest.param(name, marks=needs_converter) for name in ("onnxruntime", "openvino")]


@pytest.fixture(scope="module")
def mnist() -> ModelFiles:
    """The smallest model with a dynamic graph to rebuild."""
    repository = ModelRepository(MODELS)
    return repository.read("mnist", repository.versions("mnist")[0])


def test_a_rebuilt_network_gives_the_golden_output(mnist: ModelFiles) -> None:
    golden = mnist.selftest()
    with opened_group(mnist, "paddle_dygraph") as predictor:
        for rows in (slice(None), slice(1)):
            inputs, expected = (
                {name: array[rows] for name, array in arrays.items()}
                for arrays in (golden.inputs, golden.outputs)
            )
            assert largest_difference(predictor.run(inputs, timeout=PATIENCE), expected) < 1e-3


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        pytest.param("paddle_inference", {"onednn": True}, id="onednn"),
        pytest.param("paddle_inference", {"onednn": False}, id="native"),
        pytest.param("paddle_inference", {"onednn_rows": 2}, id="mixed"),
        pytest.param("paddle_jit", {}, id="jit"),
        pytest.param("paddle_dygraph", {}, id="dygraph"),
        pytest.param("onnxruntime", {}, id="onnxruntime", marks=needs_converter),
        pytest.param("openvino", {}, id="openvino", marks=needs_converter),
        pytest.param("openvino", {"threads": 2}, id="openvino_t2", marks=needs_converter),
    ],
)
def test_a_failed_run_gives_no_answer_of_the_run_before(
    backend: str, options: dict[str, Any]
) -> None:
    """More tokens than the model has positions: an operator refuses them during the run."""
    files = ModelRepository(MODELS).read("emotion", 1)

    def texts(rows: int, tokens: int) -> dict[str, np.ndarray[Any, Any]]:
        ids = np.random.default_rng(tokens).integers(1, 2000, (rows, tokens))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    with opened_group(files, backend, **options) as predictor:
        for rows in (1, 2):
            first = predictor.run(texts(rows, 16), timeout=PATIENCE)
            with pytest.raises(RunRefused):
                predictor.run(texts(rows, 300), timeout=PATIENCE)
            other = predictor.run(texts(rows, 17), timeout=PATIENCE)
            again = predictor.run(texts(rows, 16), timeout=PATIENCE)
            assert largest_difference(other, first) > 1e-3
            assert largest_difference(again, first) < 1e-5


@needs_converter
def test_a_failed_run_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime would write its errors to standard error, too, among the lines of the log."""
    unequal = {
        name: np.ones((1, size), np.int64)
        for name, size in (("input_ids", 16), ("attention_mask", 8))
    }
    files = ModelRepository(MODELS).read("emotion", 1)
    with opened_group(files, "onnxruntime") as predictor, pytest.raises(BackendError) as refused:
        predictor.run(unequal, timeout=PATIENCE)
    assert "[ONNXRuntimeError]" in refused.value.library_text
    assert "onnxruntime_src" not in refused.value.library_text
    assert not caplog.messages


@pytest.mark.parametrize("backend", ["paddle_jit", *CONVERTED])
def test_a_foreign_program_needs_no_network(tiny: ModelFiles, backend: str) -> None:
    random = np.random.default_rng(5)
    with (
        opened_group(tiny, backend) as predictor,
        opened_group(tiny, "paddle_inference") as reference,
    ):
        for rows, height, width in ((1, 8, 8), (3, 11, 7), (1, 8, 8)):
            picture = random.normal(size=(rows, 3, height, width)).astype(np.float32)
            computed = predictor.run({"image": picture}, timeout=PATIENCE)
            expected = reference.run({"image": picture}, timeout=PATIENCE)
            assert list(computed) == ["scores", "mean"]
            assert largest_difference(computed, expected) < 1e-5


@needs_converter
def test_a_missing_program_is_explained_without_a_path(tiny: ModelFiles, tmp_path: Path) -> None:
    """The reason stands in `/info`."""
    with (
        pytest.raises(BackendError, match=r"^inference.json cannot be read: No such file"),
        opened_group(replace(tiny, directory=tmp_path), "onnxruntime"),
    ):
        pass


@pytest.mark.parametrize(
    "backend", ["paddle_dygraph", "paddle_jit", "onnxruntime", "openvino", "paddle_inference"]
)
def test_an_unknown_option_is_refused(mnist: ModelFiles, backend: str) -> None:
    """A misspelt option must not pass for a configuration."""
    with (
        pytest.raises(ConfigError, match="has no option 'tensorrt'"),
        opened_group(mnist, backend, tensorrt=True),
    ):
        pass


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match=f"needs the package {name} .extra engines."):
        pkgutil.resolve_name(BACKENDS[name])({"options": {}, "threads": 1})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param({"device": "tpu"}, ConfigError, "cpu.* or .*gpu", id="device"),
        pytest.param({"device": "gpu"}, BackendError, "has no CUDA", id="gpu"),
        pytest.param(
            {"device": "gpu", "float16": True}, BackendError, "has no CUDA", id="gpu float16"
        ),
        pytest.param({"float16": True}, ConfigError, 'needs device = "gpu"', id="cpu float16"),
        pytest.param(
            {"bfloat16": True, "onednn": False}, ConfigError, "needs onednn", id="native bfloat16"
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused(
    mnist: ModelFiles, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Before Paddle is asked, which would run something else in silence."""
    with pytest.raises(error, match=message), opened_group(mnist, "paddle_inference", **options):
        pass


BFLOAT16 = ["paddle_inference", pytest.param("openvino", marks=needs_converter)]


@pytest.mark.parametrize("backend", BFLOAT16)
def test_bfloat16_is_another_computation_or_refused(tiny: ModelFiles, backend: str) -> None:
    """Where the processor has it, outputs differ by more than rounding and by less than 2 %."""
    test = tiny.selftest()
    if not FAST_BFLOAT16:
        with (
            pytest.raises(BackendError, match="no fast bfloat16"),
            opened_group(tiny, backend, bfloat16=True),
        ):
            pass
        return
    with opened_group(tiny, backend, bfloat16=True) as predictor:
        drift = largest_difference(predictor.run(test.inputs, timeout=PATIENCE), test.outputs)
    assert 1e-5 < drift < 2e-2


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_bfloat16_is_refused_if_its_instructions_are_forbidden(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frameworks look only at the processor."""
    monkeypatch.setenv(name, "avx512_core_bf16")
    check_bfloat16(supported=True)
    monkeypatch.setenv(name, "avx2")
    with pytest.raises(BackendUnavailable, match=f"{name}=avx2 forbids"):
        check_bfloat16(supported=True)


class Opened:
    """Pickled: a file that exists once the pickle has been opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("backend", ["paddle_jit", "paddle_dygraph"])
def test_no_file_beside_a_program_is_unpickled(
    mnist: ModelFiles, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paddle would, of a program of Paddle 2, where the server's environment asks for those."""
    monkeypatch.setenv("FLAGS_enable_pir_api", "0")
    for suffix in (".pdmodel", ".pdiparams"):
        shutil.copy(LEGACY.with_suffix(suffix), tmp_path / f"inference{suffix}")
    marker = tmp_path / "opened"
    (tmp_path / "inference.pdiparams.info").write_bytes(pickle.dumps(Opened(marker)))
    files = replace(mnist, directory=tmp_path)
    with pytest.raises(BackendError), opened_group(files, backend):
        pass
    assert not marker.exists()
    old = ProcessBackend(environments={backend: {"FLAGS_enable_pir_api": "0"}})
    with pytest.raises(BackendError, match="which are pickled"):
        old(files.spec(InstanceGroup(name="old", backend=backend)))
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize("then", ["", "\nimport nncf"])
def test_openvino_reports_nothing_and_keeps_no_identity(then: str, tmp_path: Path) -> None:
    pytest.importorskip("nncf" if then else "openvino")
    code = (
        "import sys\n"
        "from paddlepool.engine.backends.onnx import imported_openvino\n"
        f"imported_openvino(){then}\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry.')])"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("CI", None)  # where it is set, they report nothing anyway
    done = ran([sys.executable, "-W", "ignore", "-c", code], env=environment)
    assert done.stdout.split() == ["[]"]
    assert not done.stderr
    assert not (tmp_path / "intel").exists()
