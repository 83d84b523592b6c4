"""A folder of PaddleX becomes a served model by one command."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from paddlepool.cli import main
from paddlepool.models.repository.layout import ModelRepository
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
def repository(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, imported by one command; read-only."""
    root = tmp_path_factory.mktemp("imported") / "repository"
    assert main(["import", str(folders), "--repository", str(root)]) == 0
    return root


def config(repository: Path, name: str) -> dict[str, object]:
    return tomllib.loads((repository / name / "config.toml").read_text("utf-8"))


def test_every_folder_is_a_model(repository: Path) -> None:
    """Under its own name, with the files that something opens, and not those of a hidden folder."""
    models = ModelRepository(repository)
    assert list(models.names()) == ["tiny-det", "tiny-rec", "tiny-seg", "tiny-x1-0-cls"]
    for name in models.names():
        files = models.read(name, 1)
        assert sorted(files.manifest.files) == [
            "inference.json", "inference.pdiparams", "inference.yml", "selftest.npz"
        ]  # fmt: skip
        assert files.manifest.weights["licence"] == "apache-2.0"


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
        {"shapes": {"x": [8, 3, 48, 64]}},
    ]
    assert config(repository, "tiny-seg")["warmup"] == [
        {"shapes": {"x": [1, 3, 32, 64]}},
        {"shapes": {"x": [1, 3, 64, 32]}},
    ]
    sizes = {name: config(repository, name)["dynamic_batching"] for name in
             ("tiny-det", "tiny-rec")}  # fmt: skip
    assert sizes == {"tiny-det": {"max_batch_size": 1}, "tiny-rec": {"max_batch_size": 8}}
    assert config(repository, "tiny-det")["default_group"] == "auto"


def archived(folder: Path, file: Path) -> Path:
    if file.suffix == ".zip":
        return Path(shutil.make_archive(str(file.with_suffix("")), "zip", folder))
    return Path(shutil.make_archive(str(file), "gztar", folder))


@pytest.mark.parametrize("suffix", [".zip", ""])
def test_an_archive_is_as_good_as_its_folder(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    archive = archived(folders / "Tiny_seg", tmp_path / f"tiny{suffix}")
    root = tmp_path / "repository"
    command = ["import", str(archive), "--repository", str(root), "--name", "own"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "sha256:" in printed
    assert f"own: published {root}/own/1" in printed
    assert main(command) == 0  # the same weights again
    assert f"{root}/own/1 has these weights already" in capsys.readouterr().out
    assert [path.name for path in (root / "own").iterdir() if path.is_dir()] == ["1"]


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
    assert "the operation RotateByMoon is not supported" in error
    assert "serve the model as tensors through /v2, or write a task" in error
    assert not (tmp_path / "repository").exists()
