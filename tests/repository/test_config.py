"""config.toml: what is refused, and `default_group = "auto"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.contracts.errors import ConfigError
from app.repository.config import ModelConfig, load_config

GROUPS = """
[[instance_group]]
name = "spare"
backend = "fake"
start = "on_demand"
[[instance_group]]
name = "main"
backend = "fake"
count = 3
threads = 2
[[instance_group]]
name = "wide"
backend = "fake"
threads = 7
start = "on_demand"
base = "spare"
"""


def loaded(directory: Path, text: str) -> ModelConfig:
    path = directory / "config.toml"
    path.write_text(text, "utf-8")
    return load_config(path)


def test_auto_begins_with_the_first_group_that_always_starts(tmp_path: Path) -> None:
    """Whoever reads the default group reads the name of a group."""
    config = loaded(tmp_path, 'default_group = "auto"\n' + GROUPS)
    assert (config.default_group, config.first_group) == ("main", "main")
    assert loaded(tmp_path, 'default_group = "main"\n' + GROUPS).first_group is None


def test_a_group_of_that_name_is_meant(tmp_path: Path) -> None:
    """A configuration from before the word had a meaning."""
    config = loaded(
        tmp_path, 'default_group = "auto"\n[[instance_group]]\nname = "auto"\nbackend = "fake"\n'
    )
    assert (config.default_group, config.first_group) == ("auto", None)


def test_a_chosen_group_takes_the_threads_of_the_one_before(tmp_path: Path) -> None:
    """Three processes of two threads become six of one; the other one starts on demand."""
    config = loaded(tmp_path, 'default_group = "auto"\n' + GROUPS)
    served = config.served_by("spare")
    assert (served.default_group, served.first_group) == ("spare", "main")
    spare, main = served.group("spare"), served.group("main")
    assert (spare.start, spare.count, spare.base) == ("always", 6, "main")
    assert main.start == "on_demand"
    assert config.group("spare").count == 1  # what was loaded stays as it was
    assert config.served_by("main") is config


def test_a_group_with_more_threads_than_the_first_has_no_place(tmp_path: Path) -> None:
    """It would be faster by taking what others need."""
    config = loaded(tmp_path, 'default_group = "auto"\n' + GROUPS)
    assert config.count_in_place("wide") == 0
    assert config.count_in_place("spare") == 6


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            '[[instance_group]]\nname = "a"\nbackend = "fake"\nstart = "on_demand"\n',
            '"auto" needs a group with start = "always"',
        ),
        (
            '[[instance_group]]\nname = "a"\nbackend = "fake"\ntolerance = 1\n'
            "budget = { agreement = 1.0 }\n",
            "budget takes the place of tolerance",
        ),
        (
            '[[instance_group]]\nname = "a"\nbackend = "fake"\nbudget = {}\n',
            "needs mean_difference, agreement or both",
        ),
        (
            '[[instance_group]]\nname = "a"\nbackend = "fake"\nbudget = { agreement = 2 }\n',
            "less than or equal to 1",
        ),
    ],
    ids=["nothing to begin with", "two judges", "an empty budget", "no such agreement"],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """With the key."""
    with pytest.raises(ConfigError, match=named):
        loaded(tmp_path, 'default_group = "auto"\n' + text)
