"""Programs derived from what is there: official weights without data, a transformer at any time."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.cli import main
from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.making.programs.derive import (
    OLD_TOOLS,
    Derived,
    add_program,
    checked,
    derive_int8,
    remove_unlisted,
)
from paddlepool.making.programs.qdq import Ranges
from paddlepool.making.programs.shipped import DIRECTORY, PARSER, ShippedRanges
from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from paddlepool.models.repository.manifest import Calibration, Derivation, DerivedProgram
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import agreement_of, load_tasks
from tests.engine.chain import write_composed
from tests.engine.fakes import FakeFactory, row
from tests.ran import needs_converter, ran

MODELS = Path(__file__).parents[3] / "model_repo"
OFFICIAL = MODELS / "u2netp" / "2"

ENTRY = DerivedProgram(
    name="int8", format="onnx", program="int8.onnx", derivation=Derivation(tool="test", versions={})
)


def derived(content: bytes = b"a program") -> Derived:
    return Derived(content=content, entry=ENTRY, backend="onnxruntime")


def without_programs(model: Path, version: str, target: Path) -> ModelRepository:
    """A repository with a copy of one version, its derived programs taken away."""
    copy = target / model.name / version
    shutil.copytree(model / version, copy)
    shutil.copy(model / "config.toml", copy.parent)
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    for program in manifest.pop("programs", []):
        (copy / program["program"]).unlink()
        del manifest["files"][program["program"]]
    manifest["format"] = 1
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return ModelRepository(target)


@needs_converter
@pytest.mark.paddle
@pytest.mark.slow
def test_a_transformer_gets_its_int8_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime, which makes it, leaves no identifier in the home directory."""
    repository = without_programs(MODELS / "emotion", "1", tmp_path / "models")
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    command = ["-m", "paddlepool.cli", "derive", "emotion", "--repository", tmp_path / "models"]
    done = ran([sys.executable, *command], env=environment | {"HOME": str(home)})
    assert "emotion/1: program int8 added; mean difference 0.0" in done.stdout
    assert list(home.glob("**/*onnxruntime*")) == []
    files = repository.read("emotion", 1)
    assert files.manifest.format == 2
    [program] = files.manifest.programs
    assert program.derivation.settings["activations"] == "one scale, or a scale for each row"
    assert program.quality[0].count > 100
    assert program.quality[0].figures["agreement"] >= 0.98
    _run_on(files, "onnxruntime_int8", "openvino_int8")
    again = ["derive", "emotion", "--repository", str(tmp_path / "models")]
    assert main(again) == 0
    assert "emotion/1 has the program int8" in capsys.readouterr().out
    old = replace(program, derivation=replace(program.derivation, tool=OLD_TOOLS[0]))
    add_program(files.directory, Derived(content=b"old", entry=old, backend="onnxruntime"))
    assert main(again) == 0
    assert "emotion/1: program int8 added" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.paddle
def test_a_composed_model_has_no_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out unless it is named."""
    write_composed(tmp_path)
    assert main(["derive", "--repository", str(tmp_path)]) == 0
    assert main(["derive", "chain", "--repository", str(tmp_path)]) == 1
    expected = "paddlepool derive: chain: chain is composed of one, two, and has no program\n"
    assert capsys.readouterr().err == expected


@pytest.mark.nightly  # `paddlepool pull u2netp` does the same
def test_the_official_weights_need_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ranges come with the package."""
    if not OFFICIAL.is_dir():
        pytest.skip("the official weights are not here: paddlepool pull u2netp")
    repository = without_programs(MODELS / "u2netp", "2", tmp_path)
    assert main(["derive", "u2netp", "--repository", str(tmp_path)]) == 0
    assert "u2netp/2: program int8 added; mean difference 0.00" in capsys.readouterr().out
    files = repository.read("u2netp", 2)
    [program] = files.manifest.programs
    assert "stage2d.rebnconv1d.conv_s1.outlier" in program.derivation.float_layers
    assert files.manifest.files["int8.onnx"].bytes < 2_500_000
    _run_on(files, "openvino_int8")


def test_a_program_of_the_shipped_ranges_is_replaced_no_more() -> None:
    """An older one is: it has another tool."""
    shipped = [PARSER.validate_json(path.read_bytes()) for path in DIRECTORY.glob("*.json")]
    assert len(shipped) == 2
    assert {ranges.derivation.tool for ranges in shipped}.isdisjoint(OLD_TOOLS)


def test_shipped_ranges_are_for_one_form_of_the_graph(
    double: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers of a sealed program have other names than those of a network of the package."""
    shipped = ShippedRanges(
        weights_sha256="0" * 64,
        derivation=Derivation(tool="test", versions={}),
        calibration=Calibration(data="test", count=1, sha256="0" * 64),
        quality=(),
        ranges=Ranges(activations=(), float_layers=()),
    )
    (tmp_path / "double.json").write_bytes(PARSER.dump_json(shipped))
    monkeypatch.setattr("paddlepool.making.programs.shipped.DIRECTORY", tmp_path)
    manifest = replace(double.manifest, network=None, weights={"sha256": "0" * 64})
    assert derive_int8(replace(double, manifest=manifest)) is None


def _run_on(files: ModelFiles, *groups: str) -> None:
    """The golden input on each group, within the group's own budget."""
    golden = files.selftest()
    agreement = agreement_of(files.info(), tasks=load_tasks(PIPELINES))
    test = replace(golden, agreement=agreement)
    for name in groups:
        group = files.config.group(name)
        test.judging(group).opened(ProcessBackend(), files.spec(group)).close()


def test_a_published_version_gets_a_program(double: ModelFiles, tmp_path: Path) -> None:
    """Verified like every other file of it; another one of the name replaces the first."""
    add_program(double.directory, derived())
    add_program(double.directory, derived(b"another"))
    files = ModelRepository(tmp_path).read("double", 1)
    assert [program.name for program in files.manifest.programs] == ["int8"]
    assert (files.directory / "int8.onnx").read_bytes() == b"another"
    assert {path.name for path in files.directory.parent.iterdir()} == {"1", "config.toml"}


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_an_interrupted_replacement_can_be_repaired(
    double: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Wherever it ended, the version can be served again, and the program derived again."""
    add_program(double.directory, derived())
    left = iter([Path.rename] * renames)

    def rename(path: Path, target: Path) -> Path:
        if (function := next(left, None)) is None:
            raise OSError("no power")
        return function(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(OSError, match="no power"):
            add_program(double.directory, derived(b"another"))
    remove_unlisted(double.directory, "int8.onnx")
    ModelRepository(tmp_path).read("double", 1)
    add_program(double.directory, derived(b"another"))
    assert len(ModelRepository(tmp_path).read("double", 1).manifest.programs) == 1


def test_a_program_that_computes_something_else_is_refused(double: ModelFiles) -> None:
    def wrong(inputs: Tensors) -> Tensors:
        return {"y": np.asarray(inputs["x"]) * 3}

    def open_predictor(spec: PredictorSpec, **_suspension: object) -> object:
        behave = {} if spec.program_name is None else {"behaviour": wrong, "selftest": wrong}
        return FakeFactory(**behave)(spec)  # type: ignore[arg-type]

    with pytest.raises(ExportError, match=r"mean difference 0\.\d+ on 1 samples"):
        checked(
            derived(),
            double,
            [row(1, 2, 3)],
            agreement=None,
            open_predictor=open_predictor,  # type: ignore[arg-type]
        )
    assert double.manifest.programs == ()


def test_labels_decide_where_the_mean_difference_is_small(double: ModelFiles) -> None:
    """What many outputs near a tie lose, a mean difference does not show."""
    refused = {"agreement": lambda *_outputs: 0.93, "open_predictor": FakeFactory()}
    with pytest.raises(ExportError, match=r"difference 0\.0000, agreement 0\.9300 .*0\.97"):
        checked(derived(), double, [row(1, 2, 3)], least_agreement=0.97, **refused)  # type: ignore[arg-type]
    found = checked(derived(), double, [row(1, 2, 3)], least_agreement=0.9, **refused)  # type: ignore[arg-type]
    assert found.entry.quality[-1].figures["agreement"] == 0.93


def test_the_agreement_judges_whole_numbers(double: ModelFiles) -> None:
    """Because a class may move by a step, as in a line of text; without a measure, it counts."""

    def predictor_of(number: int) -> FakeFactory:
        def classes(inputs: Tensors) -> Tensors:
            return {"y": np.asarray(inputs["x"]) * 2, "class": np.array([number])}

        return FakeFactory(behaviour=classes, selftest=classes)

    def open_predictor(spec: PredictorSpec, **_suspension: object) -> object:
        return predictor_of(7 if spec.program_name is None else 8)(spec)

    options: dict[str, Any] = {"open_predictor": open_predictor}
    checked(derived(), double, [row(1, 2, 3)], agreement=lambda *_outputs: 1.0, **options)
    with pytest.raises(ExportError, match=r"mean difference 1\.0000"):
        checked(derived(), double, [row(1, 2, 3)], agreement=None, **options)
