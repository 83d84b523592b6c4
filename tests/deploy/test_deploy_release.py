"""The workflows, and every script that a release calls, each with stand-ins for what it drives."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from paddlepool import __version__
from paddlepool_client import __version__ as client_version
from tests.deploy.conftest import Script, Stub, in_their_environment, tool
from tests.http_stub import Reply, RequestOutput, as_json
from tests.ran import ROOT, ran

RELEASE = ROOT / "deploy" / "release"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = [ROOT / ".ci" / "run", ROOT / ".ci" / "nightly", *sorted(RELEASE.glob("*.sh"))]
DIGEST = "sha256:" + "1" * 64
INSTALL = "make .venv-workflows/.installed, or .ci/nightly for actionlint"


@pytest.mark.parametrize(
    "command",
    [["actionlint"], ["zizmor", "--offline", ".github/workflows"], ["shellcheck", *SCRIPTS]],
    ids=lambda command: command[0],
)
@pytest.mark.slow
def test_the_checkers_have_nothing_to_say(command: list[str | Path]) -> None:
    ran([tool(str(command[0]), INSTALL), *command[1:]])


@pytest.mark.slow
def test_the_workflows_are_valid_by_their_schema() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    ran([program, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_what_they_call_is_in_the_repository(workflow: Path) -> None:
    """By commit, with the version beside it; every job has few permissions and an end."""
    text = workflow.read_text("utf-8")
    for line in re.findall(r"uses: (.+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    document = yaml.safe_load(text)
    assert document["permissions"] in ({}, {"contents": "read"})
    for job in document["jobs"].values():
        assert "timeout-minutes" in job
        if document["permissions"] == {}:
            assert job["permissions"]
        for step in job["steps"]:
            command = step.get("run", "")
            assert "${{" not in command  # nothing of an event becomes a command
            for script in re.findall(r"(?:^|\s)(?:python3 )?((?:deploy|\.ci)/[\w./-]+)", command):
                assert (ROOT / script).is_file(), script
                assert script.endswith(".py") or os.access(ROOT / script, os.X_OK), script


def test_every_script_of_a_release_is_used_and_can_be_run() -> None:
    """By a workflow or by another script; `bash -n` reads each."""
    text = "".join(path.read_text("utf-8") for path in (*WORKFLOWS, *RELEASE.glob("*.sh")))
    for script in RELEASE.iterdir():
        if script.suffix in (".py", ".sh"):
            assert f"deploy/release/{script.name}" in text.replace(f"#   deploy/{script}", "")
    for script in SCRIPTS:
        assert os.access(script, os.X_OK)
        ran(["bash", "-n", script])


@pytest.fixture
def version(script: Script) -> ModuleType:
    return script("deploy/release/version.py")


@pytest.fixture
def copy(version: ModuleType, tmp_path: Path) -> Path:
    """What names the version, and the changelogs."""
    names = [name for name, _ in version.PLACES]
    client = version.CLIENT
    names += ["CHANGELOG.md", client / "CHANGELOG.md", client / "src/paddlepool_client"]
    for name in names:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target)
        else:
            shutil.copy(ROOT / name, target)
    return tmp_path


def write_unreleased(changelog: Path, entries: str) -> None:
    """Replace the entries under [Unreleased]; a release leaves none."""
    head, _, rest = changelog.read_text("utf-8").partition("## [Unreleased]\n")
    below = rest[rest.index("\n## ") :]
    changelog.write_text(f"{head}## [Unreleased]\n\n{entries}{below}")


class TestVersion:
    def test_a_release_has_moved_its_entries(
        self,
        version: ModuleType,
        copy: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Everything else agrees with the tag of this version."""
        shutil.copy(ROOT / "pyproject.toml", copy)
        monkeypatch.setattr(version, "ROOT", copy)
        changelog = copy / "CHANGELOG.md"
        tag = f"v{__version__}"
        write_unreleased(changelog, "- new\n")
        assert version.main([tag]) == 1
        assert "[Unreleased] has entries" in capsys.readouterr().err
        write_unreleased(changelog, "")
        assert version.main([tag]) == 0
        assert capsys.readouterr().out == f"{__version__}\n"
        assert version.main(["--notes", tag]) == 0
        source = "https://github.com/paddlepool/paddlepool"
        assert f"[upgrading]({source}/blob/{tag}/docs/upgrading.md)" in capsys.readouterr().out

    @pytest.mark.parametrize("tag", ["1.0.0", "v1.0", "v1.0.0-1", "release"])
    def test_a_tag_that_is_no_version_is_refused(self, version: ModuleType, tag: str) -> None:
        assert version.disagreements(tag) == [f"{tag}: not a version, such as v1.0.0"]

    def test_each_place_that_disagrees_is_named(self, version: ModuleType, copy: Path) -> None:
        assert version.disagreements(f"v{__version__}", copy) == []
        for name, pattern in version.PLACES:
            file = copy / name
            text = file.read_text("utf-8")
            place = re.search(pattern, text, re.M)
            assert place is not None
            old, new = place[0], place[0].replace(place[1], "9.9.9")
            file.write_text(text.replace(old, new, 1))
            [line] = version.disagreements(f"v{__version__}", copy)
            assert line.startswith(f"{name}: ")
            file.write_text(text)
        lines = version.disagreements("v8.8.8", copy)
        assert len(lines) == len(version.PLACES) + 1
        assert lines[-1] == "CHANGELOG.md: no section [8.8.8]"
        (copy / version.CLIENT / "CHANGELOG.md").write_text("")
        [line] = version.disagreements(f"v{__version__}", copy)
        assert "clients/python/CHANGELOG.md: no section" in line

    def test_the_notes_are_the_changelogs_section(
        self, version: ModuleType, tmp_path: Path
    ) -> None:
        file = tmp_path / "CHANGELOG.md"
        file.write_text(
            "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [1.2.0] - 2026-12-01\n\n### Added\n"
            "- this\n\n## [1.1.0] - 2026-11-30\n- before\n"
        )
        assert version.section(file, "1.2.0") == "### Added\n- this"
        assert version.section(file, "1.1.0") == "- before"
        assert version.section(file, "1.2") == version.section(file, "Unreleased") == ""


Tree = Mapping[str, tuple[str, int]]
"""Text and time of each file of a layer."""


class TestLayers:
    @pytest.fixture
    def layers(self, script: Script) -> ModuleType:
        return script("deploy/release/layers.py")

    @staticmethod
    def image(path: Path, *trees: Tree) -> Path:
        """An archive as buildx writes one: an index, a manifest, and blobs by their digests."""
        blobs: dict[str, bytes] = {}

        def add(content: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            blobs[f"blobs/sha256/{digest}"] = content
            return {"digest": f"sha256:{digest}"}

        def packed(files: Mapping[str, tuple[bytes, int]]) -> bytes:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                for name, (content, time) in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mtime = len(content), time
                    archive.addfile(entry, io.BytesIO(content))
            return buffer.getvalue()

        layers = [
            add(packed({name: (text.encode(), time) for name, (text, time) in tree.items()}))
            for tree in trees
        ]
        manifest = add(json.dumps({"layers": layers}).encode())
        inner = add(json.dumps({"manifests": [manifest]}).encode())
        index = json.dumps({"manifests": [inner]}).encode()
        files = {name: (content, 0) for name, content in blobs.items()}
        path.write_bytes(packed({"index.json": (index, 0), **files}))
        return path

    def test_equal_images_have_the_same_layers(
        self, layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trees: list[Tree] = [{"etc/a": ("a", 1)}, {"srv/b": ("b", 2)}]
        one, two = (self.image(tmp_path / name, *trees) for name in ("one.tar", "two.tar"))
        assert layers.main([str(one), str(two)]) == 0
        assert capsys.readouterr().out == "the same 2 layers\n"

    def test_each_file_that_differs_is_named(
        self, layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        same: Tree = {"same": ("", 0)}
        one = self.image(tmp_path / "1", same, {"a": ("a", 1), "b": ("b", 1), "c": ("c", 1)})
        two = self.image(tmp_path / "2", same, {"a": ("a", 9), "b": ("B", 1), "d": ("d", 1)}, same)
        assert layers.main([str(one), str(two)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "2 layers, and 3"
        assert lines[1].startswith("layer 2: sha256:")
        assert lines[2:] == [
            "  a: differs in its time alone",
            "  b: differs",
            "  c: only in the first",
            "  d: only in the second",
        ]


STAND_IN = """#!/usr/bin/env python3
import json, os, sys
from pathlib import Path
name, given = Path(sys.argv[0]).name, sys.argv[1:]
said = "" if sys.stdin.isatty() or "--password-stdin" not in given else sys.stdin.read().strip()
with open(os.environ["CALLS"], "a") as calls:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    calls.write(json.dumps([name, *given, *([said] if said else [])] + [epoch]) + "\\n")
if "--metadata-file" in given:
    content = json.dumps({"containerimage.digest": "sha256:" + "2" * 64})
    Path(given[given.index("--metadata-file") + 1]).write_text(content)
replies = json.loads(os.environ["REPLIES"])
for words, reply in replies.items():
    if words in " ".join([name, *given]):
        print(reply)
"""


class Tools:
    """Programs in place of docker, helm and cosign, which note how they are called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.replies: dict[str, str] = {}
        for name in ("docker", "helm", "cosign"):
            (directory / name).write_text(STAND_IN)
            (directory / name).chmod(0o755)

    def run(
        self, *command: str | Path, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self._directory}{os.pathsep}{os.environ['PATH']}"
        own = {"CALLS": str(self._directory / "calls"), "REPLIES": json.dumps(self.replies)}
        return ran(command, check=check, env={**os.environ, "PATH": path, **own, **environment})

    def calls(self) -> list[list[str]]:
        lines = (self._directory / "calls").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    (tmp_path / "bin").mkdir()
    return Tools(tmp_path / "bin")


class TestImage:
    def test_a_build_fixes_the_base_and_every_time(self, tools: Tools, tmp_path: Path) -> None:
        tools.replies = {"imagetools inspect": json.dumps({"digest": DIGEST})}
        done = tools.run(RELEASE / "build_image.sh", tmp_path / "image.tar", SOURCE_DATE_EPOCH="7")
        assert done.stdout == f"sha256:{'2' * 64}\n"
        _, build = tools.calls()
        words = " ".join(build)
        assert build[-1] == "7"
        assert f"--build-arg BASE_IMAGE=python:3.11-slim@{DIGEST} " in words
        assert "--build-arg SOURCE_DATE_EPOCH " in words
        assert f"type=docker,dest={tmp_path}/image.tar,rewrite-timestamp=true" in words
        assert "--target serve --no-cache " in words

    def test_the_time_is_that_of_the_commit(self, tools: Tools) -> None:
        base = f"python:3.12-slim@{DIGEST}"
        command = (RELEASE / "build_image.sh", "--push", "registry.example/paddlepool", "load")
        tools.run(*command, BASE_IMAGE=base, SOURCE_DATE_EPOCH="")
        [build] = tools.calls()
        committed = ran(["git", "log", "-1", "--format=%ct"]).stdout.strip()
        assert build[-1] == committed
        words = " ".join(build)
        assert f"BASE_IMAGE={base} " in words
        assert "--target load --build-arg" in words  # from the cache
        assert "type=image,name=registry.example/paddlepool,push-by-digest=true," in words
        assert "rewrite-timestamp=true" in words

    def test_every_stage_that_installs_knows_the_time(self) -> None:
        """pip compiles by it: bytecode whose source's time is rewritten would be compiled again."""
        stages = (ROOT / "Dockerfile").read_text("utf-8").split("\nFROM ")[1:]
        installing = [stage for stage in stages if "-m pip" in stage]
        assert len(installing) == 3
        assert all("\nARG SOURCE_DATE_EPOCH\n" in stage for stage in installing)

    def test_an_image_is_tried_as_it_is_meant_to_run(
        self, tools: Tools, tmp_path: Path, stub: Stub
    ) -> None:
        """Read-only, as any user; the container is removed, whatever it answered."""
        host = stub(server()).removeprefix("http://")
        archive = tmp_path / "image.tar"
        archive.touch()
        tools.replies = {
            "docker load": f"Loaded image ID: {DIGEST}",
            "docker run": "container",
            "docker port": f"{host}\n[::1]:1",
        }
        tools.run(RELEASE / "try_image.sh", archive)
        words = [" ".join(call[:-1]) for call in tools.calls()]
        assert [call.split()[1] for call in words] == ["load", "run", "port", "logs", "rm"]
        assert words[1].endswith(f" {DIGEST}")
        for option in ("--read-only", "--cap-drop ALL", "--user 54321:54321", "--tmpfs /tmp:"):
            assert option in words[1]
        tools.replies["docker port"] = stub(server(ready=False)).removeprefix("http://")
        command = (RELEASE / "try_image.sh", "paddlepool:local")
        refused = tools.run(*command, check=False, START_SECONDS="1")
        assert refused.returncode == 1
        assert "not ready within 1 s" in refused.stderr
        assert " ".join(tools.calls()[-1][:-1]) == "docker rm --force container"


def server(*, ready: bool = True, emotion: str = "happy") -> RequestOutput:
    """Answers as Paddlepool does."""

    def handle(path: str, body: bytes) -> Reply:
        if path.startswith("/v2/health/ready"):
            return as_json({"ready": ready}, 200 if ready else 503)
        if path.startswith("/segment"):
            picture = body.startswith(b"\xff\xd8")
            return (200 if picture else 415), {"Content-Type": "image/png"}, b"\x89PNG\r\n\x1a\n"
        reply = b'[{"label":"%s","label_zh":"...","score":0.9}]' % emotion.encode()
        return 200, {"Content-Type": "application/json"}, reply

    return handle


def test_a_server_is_asked_for_a_cutout_and_an_emotion(stub: Stub) -> None:
    cutout, emotion = ran([RELEASE / "ask.sh", stub(server()), "5"]).stdout.splitlines()
    assert cutout == "a cut-out of 8 bytes"
    assert emotion.startswith('an emotion: [{"label":"happy"')
    assert ran([RELEASE / "ask.sh", stub(server(emotion="sad")), "5"], check=False).returncode == 1


class TestPublishing:
    @pytest.fixture
    def digests(self, copy: Path) -> Path:
        """Below a copy of the checkout as it is at a release."""
        shutil.copytree(RELEASE, copy / "deploy" / "release", dirs_exist_ok=True)
        shutil.copy(ROOT / "pyproject.toml", copy)
        write_unreleased(copy / "CHANGELOG.md", "")
        (copy / "digests").mkdir()
        (copy / "digests" / "amd64").write_text("sha256:a\n")
        return copy / "digests"

    @staticmethod
    def publish(
        tools: Tools, digests: Path, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        tools.replies = {
            "imagetools inspect": json.dumps({"digest": DIGEST}),
            "helm push": f"Pushed: x\nDigest: sha256:{'3' * 64}",
        }
        where = ("registry.example/own", f"v{__version__}", digests, digests.parent / "dist")
        publish = digests.parent / "deploy" / "release" / "publish.sh"
        return tools.run(publish, *where, check=check)

    @pytest.mark.parametrize("processors", [["amd64"], ["amd64", "arm64"]], ids="+".join)
    def test_what_answered_is_tagged_and_signed_by_digest(
        self, tools: Tools, digests: Path, processors: list[str]
    ) -> None:
        """The tag names each processor's image; nothing is signed by its tag."""
        for name in processors:
            (digests / name).write_text(f"sha256:{name}\n")
        printed = self.publish(tools, digests).stdout
        assert printed == f"image={DIGEST}\nchart=sha256:{'3' * 64}\n"
        image = "registry.example/own/paddlepool"
        words = [" ".join(call[:-1]) for call in tools.calls()]
        sources = " ".join(f"{image}@sha256:{name}" for name in processors)
        tags = f"--tag {image}:{__version__} --tag {image}:latest"
        sbom = digests.parent / "dist" / "sbom" / "paddlepool.cdx.json"
        archive = digests.parent / "dist" / "chart" / f"paddlepool-{__version__}.tgz"
        form = "{{json .Manifest}}"
        assert words == [
            f"docker buildx imagetools create {tags} {sources}",
            f"docker buildx imagetools inspect --format {form} {image}:{__version__}",
            f"cosign sign --yes --recursive {image}@{DIGEST}",
            f"cosign attest --yes --type cyclonedx --predicate {sbom} {image}@{DIGEST}",
            f"helm push {archive} oci://registry.example/own/charts",
            f"cosign sign --yes registry.example/own/charts/paddlepool@sha256:{'3' * 64}",
        ]

    def test_nothing_is_published_without_the_image_that_is_required(
        self, tools: Tools, digests: Path
    ) -> None:
        (digests / "amd64").rename(digests / "arm64")
        assert self.publish(tools, digests, check=False).returncode == 1
        assert not (digests.parent / "bin" / "calls").exists()

    def test_a_password_is_no_argument(self, tools: Tools) -> None:
        tools.run(RELEASE / "login.sh", "registry.example", "somebody", TOKEN="word")
        assert [(call[0], call[-2]) for call in tools.calls()] == [
            (name, "word") for name in ("docker", "helm", "cosign")
        ]
        assert all("--password-stdin" in call for call in tools.calls())


@pytest.mark.slow
def test_the_chart_is_packaged_with_the_servers_version(tmp_path: Path) -> None:
    done = in_their_environment(RELEASE / "chart.py", "--output", tmp_path / "chart")
    archive = tmp_path / "chart" / f"paddlepool-{__version__}.tgz"
    assert done.stdout.strip() == str(archive)
    with tarfile.open(archive) as packed:
        file = packed.extractfile("paddlepool/Chart.yaml")
        assert file is not None
        chart = yaml.safe_load(file.read())
        assert "paddlepool/values.schema.json" in packed.getnames()
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.nightly
def test_the_distributions_are_built_by_one_script(tmp_path: Path) -> None:
    """From the registry up, of the last commit; the client passes its tests on each Python here."""
    in_their_environment("--version")  # skips where it is missing
    done = ran([RELEASE / "build_dist.sh", tmp_path], timeout=900)
    sums = (tmp_path / "SHA256SUMS").read_text("ascii")
    assert done.stdout.endswith(sums)
    ran(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path)
    files = [str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/*")]
    assert sorted(files) == [
        f"chart/paddlepool-{__version__}.tgz",
        f"python/paddlepool-{__version__}-py3-none-any.whl",
        f"python/paddlepool-{__version__}.tar.gz",
        f"python/paddlepool_client-{client_version}-py3-none-any.whl",
        f"python/paddlepool_client-{client_version}.tar.gz",
        "sbom/paddlepool.cdx.json",
    ]
