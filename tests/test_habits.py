"""What contributors rely on exists: commands, the version, files that patterns select."""

import json
import re
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from paddlepool import __version__
from tests.ran import ROOT, ran

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_documents_name_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.M))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    texts = "\n".join(page.read_text("utf-8") for page in pages)
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", texts, re.M))
    assert {"install", "test", "run"} <= named <= targets


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.M)
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert released[:1] in ([], [__version__])


def test_every_kind_of_file_of_the_package_is_declared_and_there() -> None:
    """A pattern without a file has no purpose; a file without a pattern is in no wheel."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    for pattern in patterns:
        assert list((ROOT / "app").rglob(pattern)), pattern
    tracked = [Path(line) for line in ran(["git", "ls-files", "app"]).stdout.splitlines()]
    assert len(tracked) > 100
    left_out = [path for path in tracked if path.suffix != ".py"]
    for pattern in patterns:
        left_out = [path for path in left_out if not fnmatchcase(path.name, pattern)]
    assert left_out == []


def matches(path: str, pattern: str) -> bool:
    """True if ruff's pattern selects the path; its `**/` may also match no directory."""
    return fnmatchcase(path, pattern) or fnmatchcase(f"/{path}", pattern)


def test_every_exemption_of_ruff_is_needed() -> None:
    """Without it, ruff would report at least one line."""
    lint = PROJECT["tool"]["ruff"]["lint"]
    exemptions = [
        *(("**", code) for code in lint["ignore"]),
        *((path, code) for path, codes in lint["per-file-ignores"].items() for code in codes),
    ]
    options = ["--isolated", "--target-version=py311", "--exit-zero", "--output-format=json"]
    selected = ",".join(sorted({code for _, code in exemptions}))
    ruff = [sys.executable, "-m", "ruff", "check", *options, "--select", selected, ROOT]
    reports = [
        (str(Path(report["filename"]).relative_to(ROOT)), report["code"])
        for report in json.loads(ran(ruff).stdout)
    ]
    assert [
        (pattern, code)
        for pattern, code in exemptions
        if not any(matches(path, pattern) and name.startswith(code) for path, name in reports)
    ] == []


def test_every_path_that_ruff_treats_otherwise_exists() -> None:
    ruff = PROJECT["tool"]["ruff"]
    tracked = ran(["git", "ls-files"]).stdout.splitlines()
    patterns = [*ruff["extend-exclude"], *ruff["per-file-target-version"]]
    assert [
        pattern for pattern in patterns if not any(matches(path, pattern) for path in tracked)
    ] == []


def test_every_override_of_mypy_is_for_a_module_that_is_imported() -> None:
    """Or that mypy checks itself; each excluded path exists."""
    mypy = PROJECT["tool"]["mypy"]
    files = [path for folder in mypy["files"] for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text("utf-8") for path in files)
    imported = set(re.findall(r"^ *(?:import|from) ([\w.]+)", text, re.M))
    patterns = [name for override in mypy["overrides"] for name in override["module"]]
    assert all(pattern.endswith(".*") for pattern in patterns)
    assert [
        pattern
        for pattern in patterns
        if not any(fnmatchcase(f"{name}.", pattern) for name in imported)
    ] == []
    assert [path for path in mypy["exclude"] if not (ROOT / path).exists()] == []
