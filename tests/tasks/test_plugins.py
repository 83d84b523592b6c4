"""Tasks and compatible APIs of other packages: entry points, and modules that a setting names."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import APIRouter

from paddlepool import __version__
from paddlepool.application import enabled_apis
from paddlepool.contracts.errors import ConfigError
from paddlepool.service.api.routes import RouteTable
from paddlepool.settings.server import API_NAMES, PluginSettings
from paddlepool.tasks.plugins import OWN
from paddlepool.tasks.task import load_tasks
from tests.ran import ran

TASK = """
from fastapi import APIRouter
from paddlepool.tasks.task import Task
TASK = Task(build=lambda info, workers: None, endpoints=lambda settings: APIRouter())
"""
API = """
from paddlepool.compat import paddlex
from dataclasses import replace
API = replace(paddlex.API, name="acme", path="/acme", operation="acme", more={})
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with one module, called as itself, on the path, as pip would."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, code: str, entry: str = "", group: str = "paddlepool.tasks") -> None:
        (tmp_path / f"{name}.py").write_text(code)
        if entry:
            about = tmp_path / f"{name}-0.1.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
            (about / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")

    return install


def test_an_installed_task_is_beside_the_servers_own(install: Install) -> None:
    install("plugin_a", TASK, "tagger = plugin_a")
    tasks = load_tasks()
    assert {name: task.origin for name, task in tasks.items()} == {
        "classify": OWN,
        "ocr": OWN,
        "segment": f"paddlepool {__version__}",
        "sentiment": OWN,
        "tagger": "plugin_a 0.1",
    }


def test_a_setting_names_a_task_that_is_not_installed(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("plugin_b", TASK.replace("TASK =", "OTHER ="))
    monkeypatch.setenv("PADDLEPOOL_TASKS", "tagger=plugin_b:OTHER")
    assert load_tasks()["tagger"].origin == "PADDLEPOOL_TASKS"


@pytest.mark.parametrize(
    ("code", "entry", "message"),
    [
        (None, "x = plugin_c.no", "'x' of plugin_c 0.1: plugin_c.no cannot be imported: Module"),
        ("\n1 / 0", "x = plugin_c", r"ZeroDivisionError: division by zero \(.*_c.py, line 2\)$"),
        ("def", "x = plugin_c", "'x' of plugin_c 0.1: plugin_c cannot be imported: SyntaxError"),
        ("", "x = plugin_c", "'x' of plugin_c 0.1: plugin_c.TASK is missing, expected a Task"),
        ("TASK = 1", "x = plugin_c", "plugin_c.TASK is a int, expected a Task"),
        (TASK, "segment = plugin_c", f"{OWN} and plugin_c 0.1 both have 'segment' in paddlepool."),
    ],
    ids=["no module", "fails", "syntax", "no TASK", "wrong type", "a task of the server"],
)
def test_a_wrong_declaration_ends_the_start(
    install: Install, code: str | None, entry: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "plugin_c", raising=False)
    install("plugin_c", code or "", entry)
    with pytest.raises(ConfigError, match=message) as caught:
        load_tasks()
    assert "\n" not in str(caught.value)


def test_two_packages_with_the_same_name_are_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("plugin_d", TASK, "tagger = plugin_d")
    install("plugin_e", TASK, "tagger = plugin_e")
    with pytest.raises(ConfigError, match=r"plugin_d 0.1 and plugin_e 0.1 both have 'tagger'"):
        load_tasks()


def test_a_setting_does_not_replace_an_installed_task(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("plugin_f", TASK, "tagger = plugin_f")
    monkeypatch.setenv("PADDLEPOOL_TASKS", "tagger=plugin_f")
    assert load_tasks()["tagger"].origin == "plugin_f 0.1"  # it is the same
    monkeypatch.setenv("PADDLEPOOL_TASKS", "tagger=plugin_a")
    with pytest.raises(ConfigError, match=r"plugin_f 0\.1 and PADDLEPOOL_TASKS both have 'tagger'"):
        load_tasks()


def test_two_endpoints_never_share_a_path() -> None:
    """The first would answer, and the other one never."""
    routers = [APIRouter(), APIRouter()]
    for router in routers:
        router.add_api_route("/tag", lambda: None, methods=["POST"])
    with pytest.raises(ConfigError, match="two endpoints answer POST /tag"):
        RouteTable([(router, None) for router in routers], default_max_body=1)


def test_the_server_ends_with_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PADDLEPOOL_TASKS": "tagger=no_such_module"}
    command = [sys.executable, "-m", "paddlepool.cli", "serve", "--model-repository", tmp_path]
    done = ran(command, check=False, env=environment)
    assert done.returncode == 3
    assert done.stderr == (
        "paddlepool serve: 'tagger' of PADDLEPOOL_TASKS: no_such_module cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_compatible_apis_of_other_packages(install: Install) -> None:
    """All are enabled by default; a list names them, or the module of one."""
    install("plugin_g", API, "acme = plugin_g", "paddlepool.compatible_apis")

    def names(**settings: tuple[str, ...]) -> list[str]:
        apis = enabled_apis(PluginSettings(**settings), ["segment", "sentiment"])  # type: ignore[arg-type]
        return list(dict.fromkeys(api.name for api in apis))

    assert names() == [*API_NAMES[:3], "huggingface", "paddlex", "acme"]
    assert names(compatible_apis=("rembg",)) == ["rembg"]
    assert names(compatible_apis=("acme",)) == ["acme"]
    install("plugin_h", API.replace('"acme"', '"other"'))
    assert names(compatible_apis=("other=plugin_h",)) == ["other"]
    with pytest.raises(ConfigError, match=r"_COMPATIBLE_APIS: expected rembg, .*'window'"):
        names(compatible_apis=("window",))
    with pytest.raises(ConfigError, match=r"plugin_g\.TASK is missing, expected a CompatibleApi"):
        names(compatible_apis=("other=plugin_g:TASK",))
    with pytest.raises(ConfigError, match=r"'acme' of plugin_g 0\.1: there is no task 'segment'"):
        enabled_apis(PluginSettings(), ["sentiment"])
