"""A source is copied when every byte is right, and what is served never suffers from it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paddlepool.contracts.errors import ConfigError, DownloadError
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.sources.sync import Changes, Source, first_refresh, refresh, sync
from tests.e2e.process import wait_until
from tests.model_files import write_config, write_manifest, write_model, write_version


class Copy:
    """A source with the model `double` in version 1, and where its copy goes."""

    def __init__(self, root: Path) -> None:
        self.origin, self.local = root / "origin", root / "local"
        self.address = f"file://{self.origin}"
        write_model(self.origin / "double", "")

    def sync(self) -> Changes:
        return sync(Source(self.address), self.local)

    def served(self) -> dict[str, tuple[int, ...]]:
        """Versions by model, as a server would see them, each intact."""
        repository = ModelRepository(self.local)
        found = {name: repository.versions(name) for name in repository.names()}
        for name, versions in found.items():
            for version in versions:
                repository.read(name, version)
        return found

    def leftovers(self) -> list[str]:
        """By os.walk, because Path.rglob fails on a directory that is removed meanwhile."""
        found = []
        for _, directories, files in os.walk(self.local):
            found += [name for name in directories + files if name.startswith(".staging-")]
        return found


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_a_first_copy_is_complete_and_a_second_changes_nothing(copy: Copy) -> None:
    write_config(copy.origin / "double", "[version_policy]\nkind = 'all'\n")
    write_version(copy.origin / "double" / "2", params=b"\1" * 100)
    (copy.origin / "double" / "MODEL_CARD.md").write_text("a card", "utf-8")
    copied = copy.sync().copied
    assert set(copied) == {f"double/{name}" for name in ("1", "2", "MODEL_CARD.md", "config.toml")}
    assert len(copied) == 4
    assert copy.served() == {"double": (2, 1)}
    assert copy.sync() == Changes()
    assert copy.leftovers() == []


def test_only_what_the_version_policy_could_serve_is_copied(copy: Copy) -> None:
    write_version(copy.origin / "double" / "2")
    assert "double/1" not in copy.sync().copied
    assert copy.served() == {"double": (2,)}


def test_under_canary_the_newest_version_and_those_before_are_copied(copy: Copy) -> None:
    write_config(copy.origin / "double", "[version_policy]\nkind = 'canary'\n")
    write_version(copy.origin / "double" / "2")
    copy.sync()
    assert copy.served() == {"double": (2, 1)}


def damage(version: Path, fault: str) -> None:
    params = version / "inference.pdiparams"
    match fault:
        case "altered":
            params.write_bytes(b"\1" + params.read_bytes()[1:])
        case "shorter":
            params.write_bytes(params.read_bytes()[1:])
        case "absent":
            params.unlink()
        case "manifest":
            (version / "manifest.json").write_text("{", "utf-8")
        case "unlisted":
            (version / "more").write_bytes(b"")
        case "unreadable":
            (version / "manifest.json").unlink()
            (version / "manifest.json").mkdir()


@pytest.mark.parametrize("fault", ["altered", "shorter", "absent", "manifest"])
def test_a_damaged_version_is_refused_and_an_older_one_stands_in(copy: Copy, fault: str) -> None:
    damaged = write_version(copy.origin / "double" / "2")
    damage(damaged, fault)
    first = copy.sync()
    assert list(first.refused) == ["double/2"]
    assert ".staging-" not in first.refused["double/2"]
    assert copy.served() == {"double": (1,)}
    assert "as before" in copy.sync().refused["double/2"]
    shutil.rmtree(damaged)
    write_version(damaged, params=b"\2" * 64)
    assert copy.sync().copied == ["double/2"]
    assert copy.served() == {"double": (2, 1)}
    assert copy.leftovers() == []


def test_models_without_a_fit_version_leave_nothing(copy: Copy) -> None:
    """No directory, and no note of what the source no longer lists."""
    for number in range(20):
        unfit = write_version(copy.origin / f"unfit{number}" / "1")
        (unfit / "manifest.json").write_text("{", "utf-8")
        write_config(unfit.parent, "")
        (unfit.parent / "MODEL_CARD.md").write_text("a card", "utf-8")
    changes = copy.sync()
    assert len(changes.refused) == 20
    assert sorted(changes.copied) == ["double/1", "double/config.toml"]
    assert sorted(path.name for path in copy.local.iterdir()) == [".refused.json", "double"]
    for number in range(20):
        shutil.rmtree(copy.origin / f"unfit{number}")
    copy.sync()
    assert (copy.local / ".refused.json").read_text("utf-8") == "{}"


def test_a_version_that_the_source_dropped_goes_once_another_is_there(copy: Copy) -> None:
    """A bad release is taken back by deleting it; the model itself never vanishes."""
    copy.sync()
    newer = write_version(copy.origin / "double" / "2")
    (newer / "inference.pdiparams").write_bytes(b"damaged")
    shutil.rmtree(copy.origin / "double" / "1")
    assert copy.sync().removed == []
    assert copy.served() == {"double": (1,)}
    shutil.rmtree(newer)
    write_version(newer)
    assert copy.sync().removed == ["double/1"]
    write_model(copy.origin / "other", "")
    shutil.rmtree(copy.origin / "double")
    assert copy.sync().removed == []
    assert copy.served() == {"double": (2,), "other": (1,)}


def test_another_content_under_the_same_number_replaces_it_when_complete(copy: Copy) -> None:
    """A damaged one leaves the old content in place."""
    copy.sync()
    before = (copy.local / "double" / "1" / "inference.pdiparams").read_bytes()
    params = copy.origin / "double" / "1" / "inference.pdiparams"
    params.write_bytes(b"\3" * 64)
    write_manifest(params.parent)
    params.write_bytes(b"\4" * 64)
    assert list(copy.sync().refused) == ["double/1"]
    assert (copy.local / "double" / "1" / "inference.pdiparams").read_bytes() == before
    write_manifest(params.parent)
    assert copy.sync().copied == ["double/1"]
    assert (copy.local / "double" / "1" / "inference.pdiparams").read_bytes() == b"\4" * 64


@pytest.mark.parametrize("fault", ["altered", "shorter", "absent", "unlisted", "unreadable"])
def test_a_damaged_copy_is_fetched_again(copy: Copy, fault: str) -> None:
    """Also if only the files show it, because its manifest is whole."""
    copy.sync()
    damage(copy.local / "double" / "1", fault)
    changes = copy.sync()
    assert (changes.copied, list(changes.damaged)) == (["double/1"], ["double/1"])
    assert copy.served() == {"double": (1,)}
    assert copy.sync() == Changes()


def test_an_unfit_configuration_leaves_the_old_one(copy: Copy) -> None:
    copy.sync()
    write_config(copy.origin / "double", "default_group = 3")
    assert list(copy.sync().refused) == ["double/config.toml"]
    assert (copy.local / "double" / "config.toml").read_text("utf-8") == ""


def test_nothing_but_the_names_of_a_repository_is_copied(copy: Copy) -> None:
    """No names of a path, no hidden ones, no folders within a version."""
    for stray in ("secret.txt", "double/secret.txt", "double/1/deep/er", "../up", ".hidden/1/x"):
        path = copy.origin / stray
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stray", "utf-8")
    copy.sync()
    found = {str(path.relative_to(copy.local)) for path in copy.local.rglob("*") if path.is_file()}
    assert found == {
        ".refused.json",
        "double/config.toml",
        *(f"double/1/{name}" for name in ("inference.json", "inference.pdiparams")),
        *(f"double/1/{name}" for name in ("manifest.json", "selftest.npz")),
    }


@pytest.mark.parametrize("file", ["MODEL_CARD.md", "config.toml", "1/manifest.json"])
def test_a_file_that_cannot_be_read_holds_up_nothing_else(copy: Copy, file: str) -> None:
    """One that is too large, here; the rest of its model and the models after it are copied."""
    copy.sync()
    write_model(copy.origin / "other", "")
    (copy.origin / "double" / file).write_bytes(b"#" * (5 << 20))
    changes = copy.sync()
    assert list(changes.refused) == [f"double/{file.removesuffix('/manifest.json')}"]
    assert "the limit is" in next(iter(changes.refused.values()))
    assert copy.served() == {"double": (1,), "other": (1,)}


def test_an_empty_source_is_an_error_and_changes_nothing(copy: Copy) -> None:
    copy.sync()
    shutil.rmtree(copy.origin / "double")
    with pytest.raises(DownloadError, match="holds no MODEL/VERSION"):
        copy.sync()
    assert copy.served() == {"double": (1,)}


def test_a_version_that_the_disk_has_no_room_for_is_refused(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=10)
    monkeypatch.setattr("paddlepool.models.sources.sync.shutil.disk_usage", lambda _path: usage)
    assert "10 are free on the disk" in copy.sync().refused["double/1"]
    assert copy.served().get("double", ()) == ()
    assert copy.leftovers() == []


@pytest.mark.parametrize("address", ["nothing://bucket", "gs://bucket"], ids=["scheme", "extra"])
def test_an_address_that_nothing_reads_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"nothing|paddlepool\[sources\]"):
        Source(address)


@pytest.mark.slow
def test_a_refresh_reports_and_never_raises(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert refresh(copy.address, copy.local, until=threading.Event())
    assert "model source: taken double/1" in caplog.messages
    shutil.rmtree(copy.origin)
    assert not refresh(copy.address, copy.local, until=threading.Event())
    assert "the local copy stays in service" in caplog.text
    assert copy.served() == {"double": (1,)}


@pytest.fixture
def stuck(copy: Copy) -> Copy:
    """Its source begins to answer, and then hangs."""
    params = copy.origin / "double" / "1" / "inference.pdiparams"
    params.write_bytes(b"")
    write_manifest(params.parent)
    params.unlink()
    os.mkfifo(params)  # nobody writes: reading it hangs
    return copy


@pytest.mark.slow
def test_a_copy_that_is_ended_leaves_nothing_behind(stuck: Copy) -> None:
    """Each attempt at a slow source would leave its part of a version on the disk."""
    threading.Thread(
        target=refresh,
        args=(stuck.address, stuck.local),
        kwargs={"until": (ending := threading.Event())},
        daemon=True,
    ).start()
    wait_until(lambda: stuck.leftovers() != [])
    ending.set()
    wait_until(lambda: stuck.leftovers() == [])


@pytest.mark.slow
def test_a_copy_ends_with_the_server_that_was_killed(stuck: Copy) -> None:
    """Nothing is left running, and nothing on the disk."""
    program = (
        "import sys, threading; from pathlib import Path;"
        "from paddlepool.models.sources.sync import refresh;"
        "refresh(sys.argv[1], Path(sys.argv[2]), until=threading.Event())"
    )
    server = subprocess.Popen([sys.executable, "-c", program, stuck.address, stuck.local])
    wait_until(lambda: stuck.leftovers() != [])
    server.kill()
    server.wait()
    wait_until(lambda: stuck.leftovers() == [])


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is asked, no answer comes."""
    program = tmp_path / "hanging"
    program.write_text("#!/bin/sh\nexec sleep 60\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize(
    ("here", "polled", "patience"),
    [(True, True, 0.1), (True, False, 0.9), (False, True, 0.9)],
    ids=["served soon", "never asked again", "nothing to serve"],
)
def test_a_source_that_hangs_does_not_keep_models_from_being_served(
    copy: Copy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    here: bool,
    polled: bool,
    patience: float,
) -> None:
    """Kubernetes would restart a server that is not live within its two minutes."""
    monkeypatch.setattr("paddlepool.models.sources.sync.START_SECONDS", 0.1)
    monkeypatch.setattr("paddlepool.models.sources.sync.TIMEOUT_SECONDS", 0.9)
    root = copy.origin if here else copy.origin / "absent"
    began = time.monotonic()
    assert not first_refresh("s3://models", root, polled=polled)
    assert patience <= time.monotonic() - began
    assert f"did not answer within {patience:.0f} s" in caplog.text
