"""Every file that a fuzzer has found worth keeping, through its target again."""

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
