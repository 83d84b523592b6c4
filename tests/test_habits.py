"""What contributors lean on is there: commands, the version, types for those who import us."""

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from paddlepool import __version__
from tests.ran import ROOT, ran

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_the_documents_name_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.M))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        named = re.findall(r"(?:`|^)make ([a-z0-9-]+)", path.read_text("utf-8"), re.M)
        assert set(named) <= targets, path.name


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.M)
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert released[:1] in ([], [__version__])


def test_every_kind_of_file_of_the_package_is_declared_and_there() -> None:
    """A pattern that matches nothing, as py.typed once did, promises what is not there; a file that
    matches none is in no wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    for pattern in patterns:
        assert list((ROOT / "app").rglob(pattern)), pattern
    tracked = [Path(line) for line in ran(["git", "ls-files", "app"]).stdout.splitlines()]
    assert len(tracked) > 100
    left_out = [path for path in tracked if path.suffix != ".py"]
    for pattern in patterns:
        left_out = [path for path in left_out if not fnmatchcase(path.name, pattern)]
    assert left_out == []
