"""What a model is made of is read from regular files, and from nothing that could make it wait."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paddlepool.contracts.errors import ConfigError, ManifestError, PaddlepoolError
from paddlepool.models.repository.config import MAX_CONFIG_BYTES, ModelConfig, load_config
from paddlepool.models.repository.manifest import read_manifest
from paddlepool.models.repository.selftest import read_selftest


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


READERS: dict[str, tuple[str, Callable[[Path], object], type[PaddlepoolError]]] = {
    "config": ("config.toml", lambda folder: load_config(folder / "config.toml"), ConfigError),
    "manifest": ("manifest.json", read_manifest, ManifestError),
    "self-test": ("selftest.npz", lambda folder: read_selftest(folder, (), ()), ManifestError),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, make_socket, make_endless, Path.mkdir])
def test_only_regular_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], reader: str
) -> None:
    """A pipe without a writer would be waited for until somebody writes; a device never ends."""
    monkeypatch.chdir(tmp_path)
    name, read, refusal = READERS[reader]
    make(tmp_path / name)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            read(tmp_path)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive(), "it waits"
    [error] = raised
    assert isinstance(error, refusal)


def test_a_config_may_be_a_link_and_has_an_end(tmp_path: Path) -> None:
    """Clusters mount configuration as links within the repository. A megabyte of it is enough."""
    config = tmp_path / "repository" / "model" / "config.toml"
    real = config.parent / "..data" / "real"
    real.parent.mkdir(parents=True)
    real.write_text("default_group = 'onednn'")
    config.symlink_to("..data/real")
    assert load_config(config) == ModelConfig()
    real.write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(config)
    assert load_config(config.parent / "nothing.toml") == ModelConfig()
    (tmp_path / "outside").write_text("default_group = 'onednn'")
    config.unlink()
    config.symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="a link out of the model repository"):
        load_config(config)
    config.unlink()
    config.symlink_to(config)
    with pytest.raises(ConfigError, match="symbolic links"):
        load_config(config)
