"""Conversions to ONNX: one for all engines of a command, another one for a changed program."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.ports import PredictorSpec
from paddlepool.engine.backends.converted import ConvertedPrograms, converted_once
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.models.repository.layout import ModelRepository
from tests.engine.fakes import PATIENCE
from tests.ran import ROOT, needs_converter
from tests.tiny_onnx import classifier

pytestmark = pytest.mark.paddle


@pytest.fixture
def spec(tmp_path: Path) -> PredictorSpec:
    """The digits of mnist, for ONNX Runtime."""
    files = ModelRepository(ROOT / "model_repo").read("mnist", 1)
    directory = shutil.copytree(files.directory, tmp_path / "mnist")
    group = next(g for g in files.config.instance_group if g.backend == "paddle_inference")
    return replace(files.spec(group), directory=directory, backend="onnxruntime", options={})


def written(programs: ConvertedPrograms, spec: PredictorSpec) -> Path:
    path = programs.path(spec)
    assert path is not None
    return path


def scores(spec: PredictorSpec, programs: ConvertedPrograms) -> np.ndarray:  # type: ignore[type-arg]
    (name,) = (each.name for each in spec.inputs)
    digits = np.random.default_rng(3).random((2, 784), np.float32)
    with closing(ProcessBackend(converted=programs)(spec)) as predictor:
        (output,) = predictor.run({name: digits}, timeout=PATIENCE).values()
        return np.array(output)


@needs_converter
def test_a_program_is_converted_once(spec: PredictorSpec) -> None:
    """The second engine runs what the first one left, and nothing stays after the command."""
    with converted_once() as programs:
        path = written(programs, spec)
        first = scores(spec, programs)
        kept = path.stat()
        assert kept.st_size > 1000
        openvino = replace(spec, backend="openvino")
        assert written(programs, openvino) == path
        np.testing.assert_allclose(scores(openvino, programs), first, rtol=0, atol=1e-4)
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == (kept.st_mtime_ns, kept.st_ino)
        path.write_bytes(classifier().SerializeToString())  # shows that it is what runs
        with closing(ProcessBackend(converted=programs)(spec)) as predictor:
            rows = {"rows": np.ones((1, 4), np.float32)}
            (output,) = predictor.run(rows, timeout=PATIENCE).values()
            assert output.shape == (1, 3)
    assert not path.parent.exists()


@pytest.mark.parametrize("field", ["program", "params"])
def test_a_changed_file_is_another_program(spec: PredictorSpec, tmp_path: Path, field: str) -> None:
    programs = ConvertedPrograms(tmp_path)
    path = written(programs, spec)
    assert written(programs, replace(spec, backend="openvino", threads=2)) == path
    file = spec.directory / getattr(spec, field)
    file.write_bytes(file.read_bytes() + b" ")
    assert written(programs, spec) != path
    file.unlink()
    assert programs.path(spec) is None


def test_only_what_is_converted_is_kept(spec: PredictorSpec, tmp_path: Path) -> None:
    assert ConvertedPrograms().path(spec) is None
    programs = ConvertedPrograms(tmp_path)
    assert programs.path(replace(spec, format="onnx")) is None
    assert programs.path(replace(spec, backend="paddle_inference")) is None
    programs.keep(tmp_path / "kept", tmp_path / "absent")
    (tmp_path / "link").symlink_to(spec.directory / spec.program)
    programs.keep(tmp_path / "kept", tmp_path / "link")
    assert list(tmp_path.glob("kept*")) == []
