"""The server's wheel is an application: models, description and all that it needs."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.deploy.conftest import committed_versions
from tests.e2e.process import Server
from tests.ran import ROOT, ran

PATIENCE = 280.0
BUILT = (
    *("app", "examples", "model_repo"),
    *("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"),
)

pytestmark = pytest.mark.nightly  # packs 34 MB


def run(command: list[str], directory: Path) -> str:
    return ran(command, cwd=directory, timeout=PATIENCE).stdout


def built(step: str, source: Path, target: Path) -> Path:
    """Build with the setuptools that is here, as `pip wheel` does with the one it downloads."""
    target.mkdir(exist_ok=True)
    program = f"import sys; from setuptools import build_meta; build_meta.{step}(sys.argv[1])"
    run([sys.executable, "-c", program, str(target)], source)
    [file] = target.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the unpacked source distribution, as a release is."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    unwanted = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, source / name)
    # What `paddlepool pull` publishes in a checkout stays there.
    (source / "model_repo" / "u2netp" / "9").mkdir(exist_ok=True)
    (source / "model_repo" / "u2netp" / "9" / "manifest.json").write_text("{}")
    with tarfile.open(built("build_sdist", source, place / "sdist")) as archive:
        archive.extractall(place, filter="data")
    [unpacked] = place.glob("paddlepool-*")
    assert not (unpacked / "tests").exists()
    return built("build_wheel", unpacked, place / "dist")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_brings_the_newest_committed_version_of_each_model(wheel: Path) -> None:
    committed = ran(["git", "ls-files", "model_repo"]).stdout.splitlines()
    newest = {model: versions[-1] for model, versions in committed_versions().items()}
    older = re.compile(r"model_repo/(\w+)/(\d+)/")
    wanted = {
        file.removeprefix("model_repo/")
        for file in committed
        if not (match := older.match(file)) or int(match[2]) == newest[match[1]]
    }
    prefix = "paddlepool/models/shipped/"
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith(prefix)}
        assert {name.removeprefix(prefix) for name in packed} == wanted
        for name in wanted:
            assert archive.read(prefix + name) == (ROOT / "model_repo" / name).read_bytes()
    assert wheel.stat().st_size < 100e6  # a registry's limit for a file


def test_the_wheel_has_every_module_and_page(wheel: Path) -> None:
    """Whatever Git has of the package, no test and no cache."""
    tracked = ran(["git", "ls-files"], cwd=ROOT / "app").stdout.splitlines()
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in tracked if name not in names} == set()
    template = ROOT / "examples" / "picture-classifier"
    files = ran(["git", "ls-files"], cwd=template).stdout.splitlines()
    assert {f"paddlepool/cli/template/{name}" for name in files} <= names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"paddlepool"}
    assert not [name for name in names if name.endswith((".pyc", ".pyo"))]


def test_new_task_finds_its_template_in_the_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    command = [sys.executable, "-m", "paddlepool.cli", "new-task", "plant-names"]
    ran([*command, "--directory", tmp_path / "plant-names"], cwd=tmp_path)
    assert (tmp_path / "plant-names" / "src" / "plant_names" / "task.py").is_file()


def test_the_description_leads_somewhere_outside_the_checkout(metadata: Message) -> None:
    """Every link is absolute, and the files that it names are in the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not re.match(r"https?:|http://127", link)] == []
    source = project["urls"]["Source"]
    for kind, path in re.findall(rf"{re.escape(source)}/(blob|raw)/main/([^)#\s]+)", text):
        assert (ROOT / path).exists(), path
        assert (kind == "raw") == path.endswith((".png", ".jpg", ".svg")), path


def test_what_is_needed_is_declared(metadata: Message) -> None:
    """The client's commands, the licence, where the project is, and which Python runs it."""
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if line.startswith("paddlepool-client[commands]")]
    assert metadata["License-Expression"] == "Apache-2.0"
    links = dict(line.split(", ") for line in metadata.get_all("Project-URL") or [])
    assert {"Source", "Documentation", "Changelog", "Issues"} <= links.keys()
    classifiers = metadata.get_all("Classifier") or []
    versions = {line.rpartition(" :: ")[2] for line in classifiers if " :: 3.1" in line}
    assert versions == {"3.11", "3.12", "3.13"}
    assert metadata["Requires-Python"] == "<3.14,>=3.11"


@contextmanager
def serving(program: Path, directory: Path, log: Path) -> Iterator[Server]:
    """`paddlepool serve` for a user whose home is beside the empty directory."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLEPOOL_", "XDG_"))}
    environment |= {"HOME": str(directory.parent / "home"), "PADDLEPOOL_PORT": "0"}
    environment["PADDLEPOOL_TIMEOUT_DEFAULT_MS"] = "30000"  # a busy machine answers late
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(program), "serve"], cwd=directory, env=environment, stderr=output
        )
    try:
        server = Server(process, log)
        server.wait_logged(event="loaded")
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.paddle
@pytest.mark.e2e
def test_an_empty_directory_is_served_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the wheel and the dependencies and knows of no checkout."""
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment, with_pip=False, symlinks=True)
    empty.mkdir()
    (tmp_path / "home").mkdir()
    python = environment / "bin" / "python"
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], empty)
    beside = [path for path in sys.path if path.endswith("site-packages")]
    Path(site.strip(), "beside.pth").write_text("\n".join([*beside, sysconfig.get_path("purelib")]))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    client = shutil.copytree(ROOT / "clients" / "python", tmp_path / "client")
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed"]
    run([*command, *alone, str(wheel), str(client)], tmp_path)
    where = "import paddlepool; print(paddlepool.__file__)"
    assert run([str(python), "-P", "-c", where], empty).startswith(site.strip())
    # Most FastAPI projects have a package `app`.
    project = tmp_path / "project"
    (project / "app").mkdir(parents=True)
    (project / "app" / "__init__.py").write_text("")
    both = "import app, paddlepool; print(app.__file__, paddlepool.__file__)"
    project_module, site_module = run([str(python), "-c", both], project).split()
    assert project_module.startswith(str(project))
    assert site_module.startswith(site.strip())

    program, log = environment / "bin" / "paddlepool", tmp_path / "log"
    for first in (True, False):
        with serving(program, empty, log) as server, server.client() as http:
            picture = (ROOT / "docs" / "images" / "astronaut.jpg").read_bytes()
            cutout = http.post("/segment", content=picture, headers={"Content-Type": "image/jpeg"})
            assert cutout.status_code == 200
            assert cutout.content.startswith(b"\x89PNG")
            emotions = http.post("/sentiment", json={"text": "今天真开心"}).json()
            assert emotions[0]["label"] == "happy"
        own = tmp_path / "home" / ".local" / "share" / "paddlepool" / "model_repo"
        text = log.read_text("utf-8")
        assert f"the model repository is {own}" in text
        assert (f"were copied to {own}" in text) == first
    if (own / "u2netp" / "2").exists():  # the second start needed no network
        assert "looking for the official weights" not in text
    assert list(empty.iterdir()) == []
