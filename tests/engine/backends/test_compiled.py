"""Compiled programs: stored by the server, imported by later predictors, rejected when damaged."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.backends.compiled import MAX_FILES, CompiledPrograms
from paddlepool.engine.backends.process import ENVIRONMENT, OPENVINO, ProcessBackend
from paddlepool.engine.process.start import Spares
from tests.engine.backends.test_process import opened
from tests.engine.fakes import PATIENCE
from tests.tiny_onnx import classifier

ROWS = {"rows": np.arange(8, dtype=np.float32).reshape(2, 4)}


@pytest.fixture
def programs(tmp_path: Path) -> CompiledPrograms:
    return CompiledPrograms(tmp_path / "compiled")


@pytest.fixture
def spec(tmp_path: Path) -> PredictorSpec:
    (tmp_path / "model.onnx").write_bytes(classifier().SerializeToString())
    return PredictorSpec(
        directory=tmp_path,
        program="model.onnx",
        params=None,
        inputs=(TensorSpec("rows", "float32", (-1, 4)),),
        outputs=(TensorSpec("scores", "float32", (-1, 3)),),
        backend="openvino",
        threads=1,
        format="onnx",
    )


def path_of(programs: CompiledPrograms, spec: PredictorSpec) -> Path:
    path = programs.path(spec)
    assert path is not None
    return path


def stored(programs: CompiledPrograms, spec: PredictorSpec, content: bytes) -> Path:
    path, export = path_of(programs, spec), spec.directory / "export"
    export.write_bytes(content)
    programs.store(path, export)
    return path


def test_whatever_changes_the_result_changes_the_file(
    programs: CompiledPrograms, spec: PredictorSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {path_of(programs, spec)}
    paths.add(path_of(programs, replace(spec, threads=2)))
    paths.add(path_of(programs, replace(spec, options={"bfloat16": True})))
    (spec.directory / "model.onnx").write_bytes(b"another program")
    paths.add(path_of(programs, spec))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    paths.add(path_of(programs, spec))
    assert len(paths) == 5


def test_only_programs_that_openvino_reads_as_they_are_have_a_file(
    programs: CompiledPrograms, spec: PredictorSpec
) -> None:
    assert programs.path(replace(spec, backend="onnxruntime")) is None
    assert programs.path(replace(spec, format="paddle")) is None
    assert programs.path(replace(spec, program="missing")) is None


def test_a_package_that_is_absent_stores_nothing(
    programs: CompiledPrograms, spec: PredictorSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the predictor then says that the backend is unavailable."""
    with monkeypatch.context() as without_packages:
        without_packages.setattr("sys.path", [])
        assert programs.path(spec) is None
    assert programs.path(spec) is not None


def test_a_damaged_file_is_not_used(programs: CompiledPrograms, spec: PredictorSpec) -> None:
    path = path_of(programs, spec)
    assert not programs.any()
    assert not programs.intact(path)
    stored(programs, spec, b"a compiled program")
    assert programs.any()
    assert programs.intact(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert not programs.intact(path)


def test_a_link_is_not_followed(programs: CompiledPrograms, spec: PredictorSpec) -> None:
    path = stored(programs, spec, b"a compiled program")
    path.rename(other := path.with_name("other"))
    path.symlink_to(other)
    assert not programs.intact(path)


def test_the_files_used_least_recently_are_removed(
    programs: CompiledPrograms, spec: PredictorSpec
) -> None:
    first = stored(programs, spec, b"used")
    second = stored(programs, replace(spec, threads=2), b"unused")
    for path in (first, second):
        os.utime(path, (1, 1))
    assert programs.intact(first)
    for threads in range(3, MAX_FILES + 2):
        stored(programs, replace(spec, threads=threads), b"more")
    assert first.exists()
    assert not second.exists()


@pytest.mark.slow
def test_a_later_predictor_imports_what_the_first_has_compiled(
    programs: CompiledPrograms, spec: PredictorSpec
) -> None:
    pytest.importorskip("openvino")
    backend = ProcessBackend(compiled=programs)
    with opened(spec, ProcessBackend()) as predictor:
        expected = predictor.run(ROWS, timeout=PATIENCE)["scores"]
    with opened(spec, backend) as predictor:
        first = predictor.run(ROWS, timeout=PATIENCE)["scores"]
    path = path_of(programs, spec)
    written = path.stat().st_mtime_ns, path.read_bytes()
    spares = Spares()
    spares.start(ENVIRONMENT, prepare=OPENVINO, count=1)
    [(_, spare)] = spares._waiting
    with closing(spares), opened(spec, replace(backend, spares=spares)) as predictor:
        assert predictor.pid == spare.popen.pid
        second = predictor.run(ROWS, timeout=PATIENCE)["scores"]
    assert np.array_equal(first, expected)
    assert np.array_equal(second, expected)
    assert path.stat().st_mtime_ns != written[0]  # it was used
    assert path.read_bytes() == written[1]


@pytest.mark.slow
def test_a_file_that_the_engine_rejects_is_compiled_again(
    programs: CompiledPrograms, spec: PredictorSpec, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openvino")
    path = stored(programs, spec, b"no compiled program")
    before = path.read_bytes()
    with opened(spec, ProcessBackend(compiled=programs)) as predictor:
        assert predictor.run(ROWS, timeout=PATIENCE)["scores"].shape == (2, 3)
    assert "a compiled program is removed" in caplog.text
    assert programs.intact(path)
    assert path.read_bytes() != before
