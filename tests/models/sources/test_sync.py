"""A source is copied when every byte is right, and what is served never suffers from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.contracts.errors import ConfigError, DownloadError
from app.models.repository.layout import ModelRepository
from app.models.sources.remote import Source
from app.models.sources.sync import Changes, first_refresh, refresh, sync
from tests.e2e.process import wait_until
from tests.model_files import write_config, write_manifest, write_model, write_version


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A source with the model `double` in version 1."""
    directory = tmp_path / "origin"
    write_model(directory / "double", "")
    return directory


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


def synced(origin: Path, local: Path) -> Changes:
    return sync(Source(f"file://{origin}"), local)


def served(local: Path) -> dict[str, tuple[int, ...]]:
    """Versions by model, as a server would see them, each intact."""
    repository = ModelRepository(local)
    found = {name: repository.versions(name) for name in repository.names()}
    for name, versions in found.items():
        for version in versions:
            repository.read(name, version)
    return found


def leftovers(local: Path) -> list[str]:
    """By os.walk, because Path.rglob fails on a directory that is removed meanwhile."""
    found = []
    for _, directories, files in os.walk(local):
        found += [each for each in directories + files if each.startswith(".staging-")]
    return found


def test_a_first_copy_is_complete_and_a_second_changes_nothing(origin: Path, local: Path) -> None:
    write_config(origin / "double", "[version_policy]\nkind = 'all'\n")
    write_version(origin / "double" / "2", params=b"\1" * 100)
    (origin / "double" / "MODEL_CARD.md").write_text("a card", "utf-8")
    first = synced(origin, local)
    assert sorted(first.taken) == [
        "double/1",
        "double/2",
        "double/MODEL_CARD.md",
        "double/config.toml",
    ]
    assert served(local) == {"double": (2, 1)}
    assert synced(origin, local) == Changes()
    assert leftovers(local) == []


def test_only_what_the_version_policy_could_serve_is_copied(origin: Path, local: Path) -> None:
    write_version(origin / "double" / "2")
    assert "double/1" not in synced(origin, local).taken
    assert served(local) == {"double": (2,)}


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
def test_a_damaged_version_is_refused_and_an_older_one_stands_in(
    origin: Path, local: Path, fault: str
) -> None:
    damaged = write_version(origin / "double" / "2")
    damage(damaged, fault)
    first = synced(origin, local)
    assert list(first.refused) == ["double/2"]
    assert ".staging-" not in first.refused["double/2"]
    assert served(local) == {"double": (1,)}
    assert "as before" in synced(origin, local).refused["double/2"]
    shutil.rmtree(damaged)
    write_version(damaged, params=b"\2" * 64)
    assert synced(origin, local).taken == ["double/2"]
    assert served(local) == {"double": (2, 1)}
    assert leftovers(local) == []


def test_models_without_a_fit_version_leave_nothing(origin: Path, local: Path) -> None:
    """No directory, and no note of what the source no longer lists."""
    for number in range(20):
        unfit = write_version(origin / f"unfit{number}" / "1")
        (unfit / "manifest.json").write_text("{", "utf-8")
        write_config(unfit.parent, "")
        (unfit.parent / "MODEL_CARD.md").write_text("a card", "utf-8")
    changes = synced(origin, local)
    assert len(changes.refused) == 20
    assert sorted(changes.taken) == ["double/1", "double/config.toml"]
    assert sorted(path.name for path in local.iterdir()) == [".refused.json", "double"]
    for number in range(20):
        shutil.rmtree(origin / f"unfit{number}")
    synced(origin, local)
    assert (local / ".refused.json").read_text("utf-8") == "{}"


def test_a_version_that_the_source_dropped_goes_once_another_is_there(
    origin: Path, local: Path
) -> None:
    """A bad release is taken back by deleting it; the model itself never vanishes."""
    synced(origin, local)
    newer = write_version(origin / "double" / "2")
    (newer / "inference.pdiparams").write_bytes(b"damaged")
    shutil.rmtree(origin / "double" / "1")
    assert synced(origin, local).removed == []
    assert served(local) == {"double": (1,)}
    shutil.rmtree(newer)
    write_version(newer)
    assert synced(origin, local).removed == ["double/1"]
    write_model(origin / "other", "")
    shutil.rmtree(origin / "double")
    assert synced(origin, local).removed == []
    assert served(local) == {"double": (2,), "other": (1,)}


def test_another_content_under_the_same_number_replaces_it_when_complete(
    origin: Path, local: Path
) -> None:
    """A damaged one leaves the old content in place."""
    synced(origin, local)
    before = (local / "double" / "1" / "inference.pdiparams").read_bytes()
    params = origin / "double" / "1" / "inference.pdiparams"
    params.write_bytes(b"\3" * 64)
    write_manifest(params.parent)
    params.write_bytes(b"\4" * 64)
    assert list(synced(origin, local).refused) == ["double/1"]
    assert (local / "double" / "1" / "inference.pdiparams").read_bytes() == before
    write_manifest(params.parent)
    assert synced(origin, local).taken == ["double/1"]
    assert (local / "double" / "1" / "inference.pdiparams").read_bytes() == b"\4" * 64


@pytest.mark.parametrize("fault", ["altered", "shorter", "absent", "unlisted", "unreadable"])
def test_a_damaged_copy_is_fetched_again(origin: Path, local: Path, fault: str) -> None:
    """Also if only the files show it, because its manifest is whole."""
    synced(origin, local)
    damage(local / "double" / "1", fault)
    changes = synced(origin, local)
    assert (changes.taken, list(changes.damaged)) == (["double/1"], ["double/1"])
    assert served(local) == {"double": (1,)}
    assert synced(origin, local) == Changes()


def test_an_unfit_configuration_leaves_the_old_one(origin: Path, local: Path) -> None:
    synced(origin, local)
    write_config(origin / "double", "default_group = 3")
    assert list(synced(origin, local).refused) == ["double/config.toml"]
    assert (local / "double" / "config.toml").read_text("utf-8") == ""


def test_nothing_but_the_names_of_a_repository_is_copied(origin: Path, local: Path) -> None:
    """No names of a path, no hidden ones, no folders within a version."""
    for stray in ("secret.txt", "double/secret.txt", "double/1/deep/er", "../up", ".hidden/1/x"):
        path = origin / stray
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stray", "utf-8")
    synced(origin, local)
    found = {str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()}
    assert found == {
        ".refused.json",
        "double/config.toml",
        *(f"double/1/{name}" for name in ("inference.json", "inference.pdiparams")),
        *(f"double/1/{name}" for name in ("manifest.json", "selftest.npz")),
    }


@pytest.mark.parametrize("file", ["MODEL_CARD.md", "config.toml", "1/manifest.json"])
def test_a_file_that_cannot_be_read_holds_up_nothing_else(
    origin: Path, local: Path, file: str
) -> None:
    """One that is too large, here; the rest of its model and the models after it are copied."""
    synced(origin, local)
    write_model(origin / "other", "")
    (origin / "double" / file).write_bytes(b"#" * (5 << 20))
    changes = synced(origin, local)
    assert list(changes.refused) == [f"double/{file.removesuffix('/manifest.json')}"]
    assert "the limit is" in next(iter(changes.refused.values()))
    assert served(local) == {"double": (1,), "other": (1,)}


def test_an_empty_source_is_an_error_and_changes_nothing(origin: Path, local: Path) -> None:
    synced(origin, local)
    shutil.rmtree(origin / "double")
    with pytest.raises(DownloadError, match="holds no MODEL/VERSION"):
        synced(origin, local)
    assert served(local) == {"double": (1,)}


def test_a_version_that_the_disk_has_no_room_for_is_refused(
    origin: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=10)
    monkeypatch.setattr("app.models.sources.sync.shutil.disk_usage", lambda _path: usage)
    assert "10 are free on the disk" in synced(origin, local).refused["double/1"]
    assert served(local).get("double", ()) == ()
    assert leftovers(local) == []


@pytest.mark.parametrize("address", ["nothing://bucket", "gs://bucket"], ids=["scheme", "extra"])
def test_an_address_that_nothing_reads_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"nothing|paddlepool\[sources\]"):
        Source(address)


@pytest.mark.slow
def test_a_refresh_reports_and_never_raises(
    origin: Path, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert refresh(f"file://{origin}", local, until=threading.Event())
    assert "model source: taken double/1" in caplog.messages
    shutil.rmtree(origin)
    assert not refresh(f"file://{origin}", local, until=threading.Event())
    assert "the local copy stays in service" in caplog.text
    assert served(local) == {"double": (1,)}


@pytest.fixture
def stuck(origin: Path) -> str:
    """The address of a source that begins to answer, and then hangs."""
    params = origin / "double" / "1" / "inference.pdiparams"
    params.write_bytes(b"")
    write_manifest(params.parent)
    params.unlink()
    os.mkfifo(params)  # nobody writes: reading it hangs
    return f"file://{origin}"


@pytest.mark.slow
def test_a_copy_that_is_ended_leaves_nothing_behind(stuck: str, local: Path) -> None:
    """Each attempt at a slow source would leave its part of a version on the disk."""
    threading.Thread(
        target=refresh,
        args=(stuck, local),
        kwargs={"until": (ending := threading.Event())},
        daemon=True,
    ).start()
    wait_until(lambda: leftovers(local) != [])
    ending.set()
    wait_until(lambda: leftovers(local) == [])


@pytest.mark.slow
def test_a_copy_ends_with_the_server_that_was_killed(stuck: str, local: Path) -> None:
    """Nothing is left running, and nothing on the disk."""
    program = (
        "import sys, threading; from pathlib import Path;"
        "from app.models.sources.sync import refresh;"
        "refresh(sys.argv[1], Path(sys.argv[2]), until=threading.Event())"
    )
    server = subprocess.Popen([sys.executable, "-c", program, stuck, str(local)])
    wait_until(lambda: leftovers(local) != [])
    server.kill()
    server.wait()
    wait_until(lambda: leftovers(local) == [])


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
    origin: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    here: bool,
    polled: bool,
    patience: float,
) -> None:
    """Kubernetes would restart a server that is not live within its two minutes."""
    monkeypatch.setattr("app.models.sources.sync.START_SECONDS", 0.1)
    monkeypatch.setattr("app.models.sources.sync.TIMEOUT_SECONDS", 0.9)
    root = origin if here else origin / "absent"
    began = time.monotonic()
    assert not first_refresh("s3://models", root, polled=polled)
    assert patience <= time.monotonic() - began
    assert f"did not answer within {patience:.0f} s" in caplog.text
