"""A download survives being cut off anywhere, and only the right bytes are kept."""

import fcntl
import hashlib
import random
import time
from pathlib import Path

import pytest

from app.contracts.errors import DownloadError
from app.export.weights.download import download
from app.export.weights.release import Release
from tests.export.file_server import Script, serving

CONTENT = random.Random(1).randbytes(300_000)


def release_of(url: str, content: bytes = CONTENT) -> Release:
    return Release(
        url=url,
        size=len(content),
        md5=hashlib.md5(content).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights.onnx"


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_whole_file(target: Path) -> None:
    """The file arrives whole, its progress is told, and no part file stays behind."""
    seen: list[int] = []
    with serving(Script(CONTENT)) as url:
        download(release_of(url), target, timeout=20, progress=seen.append)
    assert target.read_bytes() == CONTENT
    assert seen == sorted(seen)
    assert seen[-1] == len(CONTENT)
    assert not part_of(target).exists()


@pytest.mark.parametrize("cut", [0, 1, 65_535, 65_536, 65_537, 299_999])
def test_cut_off_once(target: Path, cut: int) -> None:
    """A connection that ends after any number of bytes is resumed from there in the same call."""
    script = Script(CONTENT, cut_after=[cut])
    with serving(script) as url:
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT
    assert script.requests == [None, f"bytes={cut}-" if cut else None]


def test_part_of_any_length_is_continued(target: Path) -> None:
    """What an earlier, killed call left behind is continued, whatever its length."""
    target.parent.mkdir()
    lengths = [1, 4_096, 150_000, 299_999, 300_000]
    script = Script(CONTENT)
    with serving(script) as url:
        for length in lengths:
            part_of(target).write_bytes(CONTENT[:length])
            download(release_of(url), target, timeout=20)
            assert target.read_bytes() == CONTENT
            target.unlink()
    assert script.requests == [f"bytes={length}-" for length in lengths[:-1]]


def test_many_cuts(target: Path) -> None:
    """A line that keeps breaking still brings the file, as long as every call brings bytes."""
    script = Script(CONTENT, cut_after=[20_000] * 14)
    with serving(script) as url:
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT
    assert len(script.requests) == 15


def test_server_that_ignores_range(target: Path) -> None:
    """A server without Range support starts over, and the file is still right."""
    script = Script(CONTENT, cut_after=[100_000], ignore_range=True)
    with serving(script) as url:
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT
    assert script.requests[1] == "bytes=100000-"


def test_server_that_answers_another_range(target: Path) -> None:
    """A partial reply from the wrong place is not glued on; the file starts over."""
    script = Script(CONTENT, cut_after=[100_000], shift_range=7)
    with serving(script) as url:
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), "expected [0-9a-f]{64}; discarded"),
        (CONTENT + b"x", "more than the expected 300000 bytes"),
    ],
    ids=["one bit flipped", "one byte more"],
)
def test_wrong_bytes(target: Path, content: bytes, message: str) -> None:
    """A file that is not the expected one is refused, and nothing of it is kept."""
    with serving(Script(content)) as url, pytest.raises(DownloadError, match=message):
        download(release_of(url), target, timeout=20)
    assert not target.exists()
    assert part_of(target).read_bytes() == b""


def test_corrupt_part_heals(target: Path) -> None:
    """A part file with wrong bytes fails once and is gone, so that the next call succeeds."""
    target.parent.mkdir()
    part_of(target).write_bytes(b"\0" * 1000)
    with serving(Script(CONTENT)) as url:
        with pytest.raises(DownloadError, match="discarded"):
            download(release_of(url), target, timeout=20)
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT


def test_overlong_part_heals(target: Path) -> None:
    """A part file longer than the release is not taken for the release."""
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT + b"tail")
    with serving(Script(CONTENT)) as url:
        with pytest.raises(DownloadError, match="discarded"):
            download(release_of(url), target, timeout=20)
        download(release_of(url), target, timeout=20)
    assert target.read_bytes() == CONTENT


def test_stalled_server(target: Path) -> None:
    """A server that stops sending is left when the time is up; what came is kept."""
    start = time.monotonic()
    with (
        serving(Script(CONTENT, stall_after=50_000)) as url,
        pytest.raises(DownloadError, match=r"time is up at 0\.1 of 0\.3 MB; run again"),
    ):
        download(release_of(url), target, timeout=2)
    assert time.monotonic() - start < 15
    assert part_of(target).read_bytes() == CONTENT[:50_000]


def test_server_that_sends_nothing(target: Path) -> None:
    """Attempts that bring no byte end after three, not when the time is up."""
    script = Script(CONTENT, cut_after=[0] * 10)
    with serving(script) as url, pytest.raises(DownloadError, match="3 attempts brought nothing"):
        download(release_of(url), target, timeout=60)
    assert len(script.requests) == 3


@pytest.mark.parametrize("status", [404, 416, 500])
def test_refusing_server(target: Path, status: int) -> None:
    """Any other status ends the call with that status in the message."""
    with (
        serving(Script(CONTENT, status=status)) as url,
        pytest.raises(DownloadError, match=f"answered {status}"),
    ):
        download(release_of(url), target, timeout=20)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x.onnx", "http://nowhere.invalid/x.onnx"], ids=["port", "name"]
)
def test_no_network(target: Path, url: str) -> None:
    """Nothing to connect to is said as such, at once."""
    with pytest.raises(DownloadError, match="no network"):
        download(release_of(url), target, timeout=5)


def test_unwritable_place(tmp_path: Path) -> None:
    """A cache that cannot be written is named."""
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match=r"cannot write to .*/file: "):
        download(release_of("http://127.0.0.1:1/x"), tmp_path / "file" / "x.onnx", timeout=5)


def test_two_at_once(target: Path) -> None:
    """A second process does not write into the first one's part file."""
    target.parent.mkdir()
    with part_of(target).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            download(release_of("http://127.0.0.1:1/x"), target, timeout=5)
