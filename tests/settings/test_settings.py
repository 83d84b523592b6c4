"""Settings: their limits, their errors, and that the documentation knows each one."""

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from paddlepool.contracts.errors import ConfigError
from paddlepool.settings.server import (
    API_NAMES,
    PREFIX,
    PluginSettings,
    Settings,
    explain,
    read_plugin_settings,
    unknown_variables,
)
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, settings_class

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
TASKS = load_tasks(PIPELINES)
ALL = settings_class(TASKS.values())


def refused(**values: object) -> str:
    with pytest.raises(ValidationError) as caught:
        ALL(**values)  # type: ignore[arg-type]
    return explain(caught.value)


def test_every_setting_is_documented_with_its_default_and_sentence() -> None:
    """One row in docs/configuration.md for each field, first the server's, then the tasks'."""
    fields = dict(Settings.model_fields)
    for task in TASKS.values():
        assert task.settings is not None
        fields |= task.settings.model_fields
    assert fields.keys() == ALL.model_fields.keys()
    said = {name: " ".join(str(field.description).split()) for name, field in fields.items()}
    said |= {**docstrings(PluginSettings), **docstrings(Settings)}
    assert [name for name, text in said.items() if not re.fullmatch(r".+\.", text)] == []
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `PADDLE")]
    expected = [
        f"| `{PREFIX}{name.upper()}` | {shown(field.default)} | {said[name]} |"
        for name, field in fields.items()
    ]
    assert expected == rows


def docstrings(settings: type[PluginSettings]) -> dict[str, str]:
    """Return the text below each field; the server's start does not read its source for them."""
    [definition] = ast.parse(inspect.getsource(settings)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


def shown(default: object) -> str:
    if default in (None, (), {}, ""):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default}`"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEPOOL_PORT", "9")
    monkeypatch.setenv("PADDLEPOOL_API_KEYS", "one, two")
    monkeypatch.setenv("PADDLEPOOL_CORS_ORIGINS", "https://a.example,http://b.example:3000")
    monkeypatch.setenv("PADDLEPOOL_DEFAULT_MODELS", "segment=u2netp, sentiment = emotion")
    monkeypatch.setenv("PADDLEPOOL_TRUSTED_PROXIES", "10.0.0.0/8,::1")
    monkeypatch.setenv("PADDLEPOOL_START_GROUP_KEYS", "three")
    settings = Settings()
    assert settings.port == 9
    assert settings.keys() == (b"one", b"two")
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert [key.get_secret_value() for key in settings.start_group_keys] == ["three"]
    assert settings.cors_origins == ("https://a.example", "http://b.example:3000")
    assert settings.default_models == {"segment": "u2netp", "sentiment": "emotion"}


def test_compatible_apis_are_named_or_all_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out: all. Empty: none."""
    assert Settings().compatible_apis == API_NAMES
    monkeypatch.setenv("PADDLEPOOL_DOORS", "tei, rembg")
    assert Settings().compatible_apis == ("tei", "rembg")
    monkeypatch.setenv("PADDLEPOOL_COMPATIBLE_APIS", "paddlex")
    assert Settings().compatible_apis == ("paddlex",)  # it has precedence over its old name
    monkeypatch.delenv("PADDLEPOOL_COMPATIBLE_APIS")
    monkeypatch.setenv("PADDLEPOOL_DOORS", "")
    assert Settings().compatible_apis == ()
    monkeypatch.setenv("PADDLEPOOL_DOORS", " , ")
    assert refused().startswith("PADDLEPOOL_DOORS: ")


def test_the_settings_of_other_packages_are_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the other settings, whose errors an option of the command line may correct."""
    monkeypatch.setenv("PADDLEPOOL_PORT", "x")
    monkeypatch.setenv("PADDLEPOOL_TASKS", "tagger=my_package.task, other = b:TASK")
    assert read_plugin_settings().tasks == {"tagger": "my_package.task", "other": "b:TASK"}
    monkeypatch.setenv("PADDLEPOOL_TASKS", "my_package.task")
    with pytest.raises(ConfigError, match="PADDLEPOOL_TASKS: expected NAME=VALUE pairs"):
        read_plugin_settings()


def test_keys_are_read_from_a_file_too(tmp_path: Path) -> None:
    """One on each line, so that two are valid while keys are changed."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf# the mobile app\r\n new \r\n\r\n#another comment\nold\n")
    assert Settings(api_keys_file=file, api_keys=("x",)).keys() == (b"x", b"new", b"old")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no key"),
        (b" \n\t\r\n", "no key"),
        (b"# to come\n", "no key"),
        (b"first\nse\xffcond\n", "not UTF-8 at byte 8"),
        (b"first\nse cond\n", "line 2 of .*keys has white space within it; each line is one key"),
    ],
    ids=["empty", "blank", "comment", "not UTF-8", "a phrase"],
)
def test_a_key_file_without_keys_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """The server would be open to all, or end with a traceback; the error repeats no key."""
    file = tmp_path / "keys"
    file.write_bytes(content)
    for others in ((), ("x",)):
        with pytest.raises(ConfigError, match=words) as refusal:
            Settings(api_keys_file=file, api_keys=others).keys()  # type: ignore[arg-type]
        assert str(refusal.value).startswith("PADDLEPOOL_API_KEYS_FILE: ")
        assert "cond" not in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"host": ""}, ("PADDLEPOOL_HOST", "at least 1 character")),  # it would mean every address
        ({"port": 70_000}, ("PADDLEPOOL_PORT", "65535", "70000")),
        ({"segment_max_bytes": "12 MiB"}, ("PADDLEPOOL_SEGMENT_MAX_BYTES", "integer", "12 MiB")),
        ({"log_level": "loud"}, ("PADDLEPOOL_LOG_LEVEL", "'debug'", "loud")),
        ({"cors_origins": "*"}, ("PADDLEPOOL_CORS_ORIGINS", "wildcard")),
        ({"cors_origins": "https://a.example/x"}, ("PADDLEPOOL_CORS_ORIGINS", "scheme")),
        ({"default_models": "u2netp"}, ("PADDLEPOOL_DEFAULT_MODELS", "NAME=VALUE")),
        ({"api_keys": " , "}, ("PADDLEPOOL_API_KEYS", "words separated by commas")),
        ({"timeout_max_ms": 5}, ("PADDLEPOOL_TIMEOUT_MAX_MS", "timeout_default_ms", "10000")),
        ({"state_file": "/"}, ("PADDLEPOOL_STATE_FILE", "path of a file", "'/'")),
        ({"quality_data": "/nope"}, ("PADDLEPOOL_QUALITY_DATA", "a directory", "'/nope'")),
        (
            {"model_source": "foo://x/y"},
            ("PADDLEPOOL_MODEL_SOURCE", "'foo' is unknown", "'foo://x/y'"),
        ),
        ({"model_source": "é, ,x y"}, ("PADDLEPOOL_MODEL_SOURCE", "s3://bucket/prefix", "'é, ,")),
        ({"model_source": "s3://"}, ("PADDLEPOOL_MODEL_SOURCE", "a place after ://", "'s3://'")),
        ({"canary_judge": "a"}, ("PADDLEPOOL_CANARY_JUDGE", "needs PADDLEPOOL_REPLICA")),
        (
            {"canary_judge": "a", "replica": "b", "state_file": "off"},
            ("PADDLEPOOL_CANARY_JUDGE", "needs PADDLEPOOL_STATE_FILE"),
        ),
        ({"no_such": 1}, ("PADDLEPOOL_NO_SUCH",)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_named_with_what_it_must_be(
    values: dict[str, object], words: tuple[str, ...]
) -> None:
    line = refused(**values)
    assert "\n" not in line
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    "address",
    ["", "s3://b/p", "gs://b/p", "hf://u/r", "file:///gone", "/gone", "simplecache::s3://b/p"],
)
def test_a_source_need_not_be_there(address: str) -> None:
    """The server starts with its local models, and reads the source when it is back."""
    assert Settings(model_source=address).model_source == address


def test_a_wrong_option_is_named_as_it_was_typed() -> None:
    with pytest.raises(ValidationError) as caught:
        ALL(port="x", log_level="loud")  # type: ignore[arg-type]
    said = explain(caught.value, options=("log_level",))
    assert "--log-level: " in said
    assert "PADDLEPOOL_PORT: " in said


def test_a_key_is_never_repeated() -> None:
    assert "hunter2" not in refused(api_keys={"hunter2": 1})
    assert "hunter2" not in repr(Settings(api_keys=("hunter2",), admin_key="hunter2"))  # type: ignore[arg-type]


def test_a_misspelt_variable_is_found() -> None:
    """It would be ignored without a word otherwise."""
    names = ["PADDLEPOOL_PROT", "PADDLEPOOL_PORT", "PATH"]
    assert unknown_variables(names, ALL) == ("PADDLEPOOL_PROT",)
    assert unknown_variables(["PADDLEPOOL_SEGMENT_MAX_BYTES", "PADDLEPOOL_DOORS"], ALL) == ()
