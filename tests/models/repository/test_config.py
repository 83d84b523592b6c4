"""config.toml: what is refused, and `default_group = "auto"`."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import paddlepool.models.repository.config as counts_module
from paddlepool.contracts.errors import ConfigError
from paddlepool.models.repository.config import (
    ModelConfig,
    VersionPolicy,
    faults_of,
    load_config,
    processes_for,
)
from tests.model_files import ON_DEMAND, group

GROUPS = (
    group("spare", ON_DEMAND)
    + group("main", "count = 3", "threads = 2")
    + group("wide", "threads = 7", ON_DEMAND, 'base = "spare"')
)


def loaded(directory: Path, text: str) -> ModelConfig:
    path = directory / "config.toml"
    path.write_text(text, "utf-8")
    return load_config(path)


def test_a_removed_key_is_ignored_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "[dynamic_batching]\nexpress_instance = true\nmax_batch_size = 2\n"
    for _ in range(2):
        assert loaded(tmp_path, text).dynamic_batching.max_batch_size == 2
    assert caplog.text.count("express_instance was removed") == 1


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


@pytest.mark.parametrize("default", ["auto", "first"])
def test_a_default_group_on_demand_stays_so_when_another_takes_over(
    tmp_path: Path, default: str
) -> None:
    groups = group("first", ON_DEMAND, "count = 2") + group("second", ON_DEMAND)
    config = loaded(tmp_path, f'default_group = "{default}"\n{groups}')
    assert config.default_group == "first"
    served = config.served_by("second")
    assert config.starts_on_demand
    assert served.starts_on_demand
    assert served.group("second").count == 2


def test_the_next_first_group_never_has_more_threads_than_the_one_before(tmp_path: Path) -> None:
    """Each group that a machine cannot run would otherwise double the processes of the next."""
    text = (
        'default_group = "auto"\n'
        + group("singles", "count = 2")
        + group("pairs", ON_DEMAND, "threads = 2")
        + group("last", ON_DEMAND, "threads = 1")
    )
    second = loaded(tmp_path, text).after_first_group()
    assert second is not None
    third = second.after_first_group()
    assert third is not None
    found = [(config.first_group, config.threads()) for config in (second, third)]
    assert found == [("pairs", 2), ("last", 2)]
    assert third.group("last").count == 2


@pytest.mark.parametrize(
    ("threads", "in_place", "of_threads"), [(1, 6, 6), (2, 3, 3), (3, 3, 2), (6, 3, 1), (7, 0, 0)]
)
def test_processes_of_more_threads_are_as_many_as_before(
    tmp_path: Path, threads: int, in_place: int, of_threads: int
) -> None:
    """One request then has several cores; the server's own choice is no fault of the operator's."""
    text = 'default_group = "auto"\n' + GROUPS.replace("threads = 7", f"threads = {threads}")
    config = loaded(tmp_path, text).model_copy(update={"default_group": "main"})
    assert config.count_in_place("wide") == in_place
    assert config.count_of_threads("wide") == of_threads
    assert config.served_by("wide").threads() == config.threads() == 6


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["tolerance = 1", "budget = { agreement = 1.0 }"], "budget replaces tolerance"),
        (["budget = {}"], "must set mean_difference, agreement or both"),
        (["budget = { agreement = 2 }"], "less than or equal to 1"),
    ],
    ids=["two judges", "an empty budget", "no such agreement"],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, lines: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        loaded(tmp_path, 'default_group = "auto"\n' + group("a", *lines))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[dynamic_batching]\nmax_batch_size = -1",
            "dynamic_batching.max_batch_size: Input should be greater than or equal to 0, "
            "received -1",
        ),
        (
            '[version_policy]\ncount = "/srv/models/x"',
            "version_policy.count: Input should be a valid integer, unable to parse string as an "
            "integer, received '…'",
        ),
        ("default_grup = 'x'", "default_grup: unknown key"),
        ("default = true", "default = true needs a pipeline: it is a task's default model"),
    ],
    ids=["number", "path", "unknown", "whole"],
)
def test_a_fault_names_the_key_and_the_value(tmp_path: Path, text: str, fault: str) -> None:
    """Clients may read it: it names no absolute path."""
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert refused.value.message.partition("config.toml: ")[2] == fault


def test_a_fault_leaves_out_a_value_that_may_be_secret() -> None:
    class Parameters(BaseModel):
        api_key: int

    with pytest.raises(ValidationError) as refused:
        Parameters.model_validate({"api_key": "hush"})
    assert "hush" not in faults_of(refused.value, "parameters")


@pytest.mark.parametrize(
    "policy",
    [
        'kind = "newest"',
        "count = 0",
        'kind = "specific"',
        "versions = [1]",
        'kind = "all"\ncount = 2',
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(tmp_path: Path, policy: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml: version_policy"):
        loaded(tmp_path, f"[version_policy]\n{policy}\n")


@pytest.mark.parametrize(
    ("threads", "cores", "gibibytes", "count"),
    [
        pytest.param(1, 2.0, 24, 2, id="one for each core"),
        pytest.param(1, 1.5, 24, 2, id="a part of a core is one"),
        pytest.param(2, 8.0, 24, 4, id="threads share the cores"),
        pytest.param(4, 2.0, 24, 1, id="at least one"),
        pytest.param(1, 32.0, 6, 6, id="one for each GiB"),
        pytest.param(1, 256.0, 512, 64, id="as many as can be written"),
    ],
)
def test_processes_fill_the_cores(threads: int, cores: float, gibibytes: int, count: int) -> None:
    memory = gibibytes << 30
    assert processes_for(threads, cores=cores, memory_bytes=memory) == count


def test_count_may_be_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number by the time that anybody reads it; without threads that make sense it is refused."""
    monkeypatch.setattr(counts_module, "available_cores", lambda: 6.0)
    monkeypatch.setattr(counts_module, "memory_limit", lambda: 64 << 30)
    path = tmp_path / "config.toml"
    group = '[[instance_group]]\nname = "onednn"\nbackend = "b"\ncount = "cores"\n'
    path.write_text(group + "threads = 2\n", "utf-8")
    assert load_config(path).group("onednn").count == 3
    path.write_text(group + "threads = 0\n", "utf-8")
    with pytest.raises(ConfigError, match="threads"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "canary"\nagreement = 0.99', "cannot be proven with 500 requests.*528 are needed"),
        ('kind = "canary"\nagreement = 1.0', "less than 1"),
        ('kind = "canary"\ncount = 2', "count belongs to kind = 'latest'"),
        ("slower = 1.1\nwithin = 2", "slower, within: only with kind = 'canary'"),
    ],
    ids=["too few requests", "all", "count", "another policy"],
)
def test_a_policy_that_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, f"[version_policy]\n{text}\n")


def test_a_composed_model_is_judged_by_requests_alone(tmp_path: Path) -> None:
    text = 'pipeline = "ocr"\n[parts]\ndetect = "m"\n[version_policy]\nkind = "canary"\n'
    assert loaded(tmp_path, text).version_policy.requests == 500
    with pytest.raises(ConfigError, match="quality: a new version of a composed model is not"):
        loaded(tmp_path, text + "quality = []\n")


@pytest.mark.parametrize(
    ("published", "current", "expected"),
    [((3, 2, 1), None, (2, 1)), ((3,), None, (3,)), ((3, 1), 2, (1,)), ((4, 3), 2, (3,))],
    ids=["unknown", "the only one", "gone", "gone with all older ones"],
)
def test_under_canary_the_current_version_serves(
    published: tuple[int, ...], current: int | None, expected: tuple[int, ...]
) -> None:
    assert VersionPolicy(kind="canary").choose(published, current) == (expected, 1)
