"""Scripts of deploy/ and loadtest/ as modules, and what they talk to."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.http_stub import RequestOutput, http_stub
from tests.ran import ROOT, ran

START_SECONDS = 60.0
PROMETHEUS = "Debian: apt-get install prometheus"
WORKFLOW_TOOLS = ROOT / ".venv-workflows" / "bin"
Script = Callable[[str], ModuleType]
"""What the fixture `script` is."""
Stub = Callable[[RequestOutput], str]
LISTENING = re.compile(r'"Listening on" address=(127\.0\.0\.1:\d+)')


def load_script(path: str) -> ModuleType:
    """Import a file of the project that is no part of the package, by its path."""
    file = ROOT / path
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


@pytest.fixture
def script() -> Iterator[Script]:
    """`load_script`, whose modules are forgotten after the test."""
    before = set(sys.modules)
    yield load_script
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).is_relative_to(ROOT / "deploy"):
            del sys.modules[name]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with ExitStack() as stack:
        yield lambda handler: stack.enter_context(http_stub(handler))


def committed_versions() -> dict[str, list[int]]:
    """The versions of each model that Git has, the newest last."""
    versions_of: dict[str, list[int]] = {}
    for file in ran(["git", "ls-files", "model_repo/*/*/manifest.json"]).stdout.split():
        _, model, version, _ = file.split("/")
        versions_of.setdefault(model, []).append(int(version))
    return {model: sorted(versions) for model, versions in versions_of.items()}


def tool(name: str, hint: str) -> str:
    """A program on the path or beside Python; skips where it is not installed."""
    beside = os.pathsep.join(map(str, (Path(sys.executable).parent, WORKFLOW_TOOLS)))
    if (path := shutil.which(name) or shutil.which(name, path=beside)) is None:
        pytest.skip(f"SKIPPED: {name} is not installed: {hint}")
    return path


def in_their_environment(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Python with what the checks of manifests and the bill of materials need."""
    python = ROOT / ".venv-deploy" / "bin" / "python"
    if not python.exists():
        pytest.skip("SKIPPED: `make .venv-deploy/.installed` makes what they need")
    return ran([python, *arguments])


def promtool(*arguments: str) -> str:
    """Run promtool; what it printed when all is well. Skips where there is none."""
    done = ran([tool("promtool", PROMETHEUS), *arguments])
    return done.stdout + done.stderr


@contextmanager
def prometheus_scraping(target: str | None, directory: Path) -> Iterator[str]:
    """Debian's Prometheus with our configuration and the options of the compose file, every second
    instead of every ten and with alerts that wait for a second. Without a target it looks for the
    name that the configuration has."""
    program = tool("prometheus", PROMETHEUS)
    shutil.copytree(ROOT / "deploy" / "prometheus", directory, dirs_exist_ok=True)
    alerts = directory / "rules" / "alerts.yml"
    alerts.write_text(re.sub(r"(?m)^( +for:) \w+$", r"\1 1s", alerts.read_text("utf-8")))
    file = directory / "prometheus.yml"
    config = yaml.safe_load(file.read_text("utf-8"))
    config["global"] = dict.fromkeys(config["global"], "1s")
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "paddlepool")
    if target is not None:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [job]
    file.write_text(yaml.safe_dump(config))
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    service = compose["services"]["prometheus"]
    (runbooks,) = (v.split(":") for v in service["volumes"] if "/runbooks:" in v)
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    command += ["--web.listen-address=127.0.0.1:0"]
    command += [
        option.replace(f"={runbooks[1]}", f"={ROOT / runbooks[0]}")
        for option in service["command"]
        if option.startswith("--web.")
    ]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://{address_in(directory / 'log')}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(START_SECONDS)


def address_in(log: Path) -> str:
    """The one that the system gave to Prometheus, once it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if match := LISTENING.search(log.read_text("utf-8")):
            with suppress(OSError), urllib.request.urlopen(f"http://{match[1]}/-/ready"):
                return match[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))


def fetch(prometheus: str, path: str) -> Any:
    """What a path of Prometheus' HTTP API answers."""
    with urllib.request.urlopen(f"{prometheus}/api/v1/{path}", timeout=10) as reply:
        return json.load(reply)["data"]
