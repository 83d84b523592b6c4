"""Every file that a fuzzer has found worth keeping, through its target again."""

from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.run import NAMES
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzers_found_is_refused_as_documented(name: str) -> None:
    files = corpus.files(name)
    assert files, f"there is no file for {name}"
    for file in files:
        try:
            TARGETS[name][0](file.read_bytes())
        except BaseException as fault:
            fault.add_note(str(file))
            raise


def test_every_target_is_fuzzed() -> None:
    """The runner knows their names before it loads them: what it instruments must be new to it."""
    assert set(NAMES) == set(TARGETS)


def test_what_reaches_new_code_is_kept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(corpus, "FOUND", tmp_path / "found")
    found = tmp_path / "found" / "child_answer"
    found.mkdir(parents=True)
    for name, data in {"long": b"[1234]", "short": b"[1]", "other": b"{}"}.items():
        (found / name).write_bytes(data)
    run = TARGETS["child_answer"][0]
    assert corpus.keep("child_answer", run, most_bytes=100) == 2
    kept = {file.name for file in (tmp_path / "kept" / "child_answer").iterdir()}
    assert kept == {"short", "other"}
    assert corpus.keep("child_answer", run, most_bytes=100) == 0
