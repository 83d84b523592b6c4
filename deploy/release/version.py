"""Check that every place with the version agrees with a tag, and print the release notes.

    python3 deploy/release/version.py v1.0.0           # prints 1.0.0, or what disagrees
    python3 deploy/release/version.py --notes v1.0.0   # prints the changelog's section

Exit code 1: something disagrees, the changelog has no section for the version, or it has entries
under [Unreleased].
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")

PLACES = (
    ("app/paddlepool/__init__.py", r'^__version__ = "(.+)"$'),
    ("CITATION.cff", r"^version: (.+)$"),
    ("deploy/helm/paddlepool/Chart.yaml", r"^version: (.+)$"),
    ("deploy/helm/paddlepool/Chart.yaml", r'^appVersion: "(.+)"$'),
    ("deploy/kserve/servingruntime.yaml", r"image: paddlepool:(.+)$"),
    ("deploy/ray/rayservice.yaml", r"image: paddlepool-ray:(.+)$"),
)
"""Files of the repository that contain the version, and its place in them."""
CLIENT = Path("clients", "python")


def disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """Return a line for each place that does not have the tag's version."""
    if (match := TAG.fullmatch(tag)) is None:
        return [f"{tag}: not a version, such as v1.0.0"]
    version = match[1]
    faults = []
    for name, pattern in PLACES:
        versions = re.findall(pattern, (root / name).read_text("utf-8"), re.M)
        if set(versions) != {version}:
            faults.append(f"{name}: {', '.join(versions) or 'no version'} is not {version}")
    if not section(root / "CHANGELOG.md", version):
        faults.append(f"CHANGELOG.md: no section [{version}]")
    client = (root / CLIENT / "src/paddlepool_client/__init__.py").read_text("utf-8")
    [own] = re.findall(PLACES[0][1], client, re.M)
    if not section(root / CLIENT / "CHANGELOG.md", own):
        faults.append(f"{CLIENT / 'CHANGELOG.md'}: no section [{own}]")
    return faults


def section(changelog: Path, version: str) -> str:
    """Return the text below the version's heading up to the next one; "" if there is none."""
    return _below(changelog, rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d")


def unreleased(changelog: Path) -> str:
    """Return the entries under [Unreleased]; a release has moved them to its own section."""
    return _below(changelog, r"\[Unreleased\]")


def _below(changelog: Path, heading: str) -> str:
    pattern = rf"^## {heading}\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, changelog.read_text("utf-8"), re.M | re.S)
    return match[1].strip() if match else ""


def linked(notes: str, tag: str) -> str:
    """Return release notes whose relative links lead to the repository at the tag."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    source = project["urls"]["Source"]
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({source}/blob/{tag}/\1)", notes)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--notes", action="store_true", help="print the changelog's section")
    parser.add_argument("tag")
    args = parser.parse_args(arguments)
    changelog = ROOT / "CHANGELOG.md"
    faults = disagreements(args.tag)
    if unreleased(changelog):
        faults.append("CHANGELOG.md: [Unreleased] has entries; move them to the version's section")
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    version = args.tag.removeprefix("v")
    print(linked(section(changelog, version), args.tag) if args.notes else version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
