"""Choices in a file, for the machine, the versions and the configuration they were made for."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from paddlepool.contracts.status import Candidate, Choice
from paddlepool.evidence.live.stored_choices import MAX_CHOICES, StoredChoices
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.observability.build_info import machine as describe
from tests.engine.fakes import DOUBLE, write_double
from tests.model_files import write_config, write_version

HERE = {"processor": "one", "cores": "2"}
CHOICE = Choice(
    group="spare",
    by="measured",
    reason="1.7 times the throughput of main",
    candidates=(Candidate(group="spare", fit=True, reason="fast", gain=1.7),),
    at=1_795_000_000.0,
)


class Bench:
    """A version of `double`, and a file for choices."""

    def __init__(self, root: Path) -> None:
        write_double(root / "models")
        self.files = ModelRepository(root / "models").read("double", 1)
        self.path = root / "state" / "choices.json"

    def choices(self, machine: Mapping[str, str] = HERE, precision: str = "auto") -> StoredChoices:
        return StoredChoices(self.path, precision=precision, machine=machine)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("machine", "precision", "named"),
    [
        ({"processor": "another", "cores": "2"}, "auto", "another processor"),
        ({"processor": "one", "cores": "8"}, "exact", "another precision, cores"),
    ],
    ids=["another machine", "another precision"],
)
def test_a_foreign_choice_is_ignored_with_one_line(
    bench: Bench,
    machine: dict[str, str],
    precision: str,
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench.choices().store(bench.files, CHOICE)
    other = bench.choices(machine, precision)
    with caplog.at_level(logging.INFO):
        assert other.get(bench.files) is None
    [line] = caplog.messages
    assert f"double@1: its default group is chosen again: it was chosen with {named}" in line
    other.store(bench.files, replace(CHOICE, group="main"))
    assert bench.choices(machine, precision).get(bench.files) == replace(
        CHOICE, group="main", by="kept"
    )
    assert bench.choices().get(bench.files) == replace(CHOICE, by="kept")


def test_another_config_or_other_files_are_another_case(bench: Bench) -> None:
    """What was measured is bound to the bytes of the version and to the groups as they were."""
    bench.choices().store(bench.files, CHOICE)
    root = bench.files.directory.parent.parent
    text = DOUBLE.format(batch=4, delay=0, queue=16, count=2, start="always")
    write_config(root / "double", text)
    assert bench.choices().get(ModelRepository(root).read("double", 1)) is None
    write_config(
        root / "double", DOUBLE.format(batch=4, delay=0, queue=16, count=1, start="always")
    )
    assert bench.choices().get(ModelRepository(root).read("double", 1)) is not None
    shutil.rmtree(root / "double" / "1")
    write_version(root / "double" / "1", program=b"other bytes")
    choice = bench.choices().get(ModelRepository(root).read("double", 1))
    assert choice is not None
    assert choice.by == "start"


def test_a_new_version_starts_with_the_group_of_the_one_before(bench: Bench) -> None:
    """Its candidates are measured later, so that a busy server does not become slow meanwhile."""
    bench.choices().store(replace(bench.files, version=2), replace(CHOICE, group="main"))
    bench.choices().store(bench.files, CHOICE)
    choice = bench.choices().get(replace(bench.files, version=3))
    assert choice is not None
    assert (choice.group, choice.by, choice.candidates, choice.at) == ("spare", "start", (), None)
    assert "version 1 was served by it" in choice.reason
    assert bench.choices().get(replace(bench.files, name="other", version=3)) is None
    assert bench.choices({"cores": "3"}).get(replace(bench.files, version=3)) is None


def test_exact_takes_no_group_from_another_version(bench: Bench) -> None:
    """Whether outputs are equal depends on the weights."""
    bench.choices(precision="exact").store(bench.files, CHOICE)
    assert bench.choices(precision="exact").get(replace(bench.files, version=2)) is None


@pytest.mark.parametrize(
    "text",
    [b"{", b"\xff\x00", b'{"format": 2, "choices": []}', b"[]", b'{"format":1,"choices":[{}]}'],
    ids=["cut off", "not text", "of a later server", "something else", "an empty choice"],
)
def test_a_damaged_file_is_ignored_and_written_anew(
    bench: Bench, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bench.path.parent.mkdir()
    bench.path.write_bytes(text)
    choices = bench.choices()
    assert choices.get(bench.files) is None
    choices.store(bench.files, CHOICE)
    [line] = caplog.messages
    assert line.startswith(f"PADDLEPOOL_STATE_FILE: {bench.path} is ignored: ")
    assert bench.choices().get(bench.files) is not None


def test_a_file_that_cannot_be_written_is_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.path.parent.parent.joinpath("state").write_text("a file where a directory should be")
    choices = bench.choices()
    choices.store(bench.files, CHOICE)
    choices.store(replace(bench.files, name="twice"), CHOICE)
    [line] = caplog.messages
    assert "cannot be" in line
    assert choices.get(bench.files) == replace(CHOICE, by="kept")
    assert choices.get(replace(bench.files, name="twice")) is not None


def test_servers_share_a_file(bench: Bench) -> None:
    """What one stores, the other does not drop; the oldest go when there are too many."""
    one, other = bench.choices(), bench.choices()
    one.store(bench.files, CHOICE)
    other.store(replace(bench.files, name="second"), CHOICE)
    assert bench.choices().get(bench.files) is not None
    assert bench.choices().get(replace(bench.files, name="second")) is not None
    for version in range(2, MAX_CHOICES + 2):
        one.store(replace(bench.files, version=version), CHOICE)
    for version, by in ((1, "start"), (MAX_CHOICES + 1, "kept")):
        choice = bench.choices().get(replace(bench.files, version=version))
        assert choice is not None
        assert choice.by == by


def test_the_place_of_the_file(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    StoredChoices(None, precision="auto", machine=HERE).store(bench.files, CHOICE)
    assert (tmp_path / "paddlepool" / "choices.json").is_file()
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    StoredChoices(None, precision="auto", machine=HERE).store(bench.files, CHOICE)
    assert (tmp_path / "home" / ".local/state/paddlepool/choices.json").is_file()
    off = StoredChoices(Path("off"), precision="auto", machine=HERE)
    off.store(bench.files, CHOICE)
    assert off.get(bench.files) is not None
    named = StoredChoices(tmp_path / "mine.json", precision="auto", machine=HERE)
    named.store(bench.files, CHOICE)
    assert (tmp_path / "mine.json").is_file()


def test_a_machine_is_its_processor_and_what_masks_it(tmp_path: Path) -> None:
    """The frameworks' own variables can forbid instructions; other variables do not matter."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A processor\nflags\t\t: avx2 avx512_vnni\n")
    found = describe(environment={}, cpuinfo=cpuinfo)
    assert (found["processor"], found["instructions"]) == ("A processor", "avx2 avx512_vnni")
    masked = describe(environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}, cpuinfo=cpuinfo)
    assert masked["environment"] == "ONEDNN_MAX_CPU_ISA=AVX2"
    for name in ("PYTHONPATH", "ORT_DISABLE_TELEMETRY"):  # no result depends on it
        assert describe(environment={name: "1"}, cpuinfo=cpuinfo) == found
    assert describe(environment={}, cpuinfo=tmp_path / "no")["processor"] == "none"
