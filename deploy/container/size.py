"""Print the parts of the server's image by size in megabytes.

    .venv/bin/python deploy/container/size.py [--models DIR] [PACKAGE…]

Counts the files of the packages that the Dockerfile keeps, or of PACKAGE and what it needs, as they
are installed beside this Python, without what the Dockerfile removes afterwards. Bytecode counts:
pip compiles it. The base image and Debian's packages are not counted.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from keep import needed

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1e6
SHOWN = 20
"""Minimum megabytes of a package with its own row."""


def shipped_packages() -> set[str]:
    """Return the packages that the Dockerfile keeps."""
    match = re.search(r"keep\.py (.+) > unneeded", (ROOT / "Dockerfile").read_text("utf-8"))
    assert match is not None  # noqa: S101  # a test holds the Dockerfile to it
    return needed(shlex.split(match[1]))


UNNEEDED = (
    "paddle/include",
    "paddle/libs/libopenvino_intel_cpu_plugin.so",
    "openvino/include",
    "onnx/backend/test",
    "onnxruntime/transformers",
)
"""Files that the Dockerfile removes from the packages that it keeps."""


def removed(parts: Sequence[str]) -> bool:
    """Return True for a file that the Dockerfile removes after the installation."""
    path = "/".join(parts)
    return "tests" in parts[:-1] or any(path == f or path.startswith(f"{f}/") for f in UNNEEDED)


def sizes(packages: set[str]) -> dict[str, int]:
    """Return the bytes of each package's files."""
    result = {}
    for name in packages:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        files = {Path(str(file.locate())): file.parts for file in installed.files or ()}
        result[name] = sum(
            path.stat().st_size
            for path, parts in files.items()
            if path.is_file() and not removed(parts)
        )
    return result


def paddle_parts() -> Iterator[tuple[str, int]]:
    """Yield the largest libraries of Paddle that are kept."""
    for file in distribution("paddlepaddle").files or ():
        if removed(file.parts):
            continue
        size = Path(str(file.locate())).stat().st_size if ".so" in file.name else 0
        if size >= SHOWN * MEGABYTE:
            yield file.name, size


def bytes_of_models(directory: Path) -> int:
    """Return the size of the repository without the versions that .dockerignore leaves out."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    left_out = [ROOT / line for line in lines if line.startswith("model_repo/")]
    return sum(
        file.stat().st_size
        for file in directory.rglob("*")
        if file.is_file() and not any(file.is_relative_to(path) for path in left_out)
    )


def table(packages: Mapping[str, int], models: int) -> str:
    """Return the table as Markdown, the largest row first."""
    large = {name: size for name, size in packages.items() if size >= SHOWN * MEGABYTE}
    rest = sum(size for name, size in packages.items() if name not in large)
    rows = dict(sorted(large.items(), key=lambda item: -item[1]))
    rows[f"{len(packages) - len(large)} other packages"] = rest
    rows["model repository"] = models
    lines = [f"| {name} | {size / MEGABYTE:,.0f} |" for name, size in rows.items()]
    total = f"| **together** | **{sum(rows.values()) / MEGABYTE:,.0f}** |"
    return "\n".join(["| part | MB |", "|---|---|", *lines, total])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, default=ROOT / "model_repo")
    parser.add_argument("package", nargs="*", metavar="PACKAGE")
    args = parser.parse_args(arguments)
    models = bytes_of_models(args.models.resolve())
    print(table(sizes(needed(args.package) if args.package else shipped_packages()), models))
    parts = sorted(paddle_parts(), key=lambda item: -item[1])
    print("\nOf paddlepaddle:", "; ".join(f"{n} {s / MEGABYTE:,.0f}" for n, s in parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
