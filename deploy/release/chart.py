"""Package the Helm chart with the server's version.

    .venv-deploy/bin/python deploy/release/chart.py --output DIRECTORY

Prints the path of the archive. Exit code 1: the chart has a fault, or another version.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import helm_python

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "paddlepool"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(arguments)
    [version] = re.findall(
        r'__version__ = "(.+)"', (ROOT / "app/paddlepool/__init__.py").read_text("utf-8")
    )
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        archive = Path(helm_python.package(CHART, destination=args.output))
    except helm_python.HelmError as error:
        print(error, file=sys.stderr)
        return 1
    if archive.name != f"paddlepool-{version}.tgz":
        print(f"{archive.name}: the server has version {version}", file=sys.stderr)
        archive.unlink()
        return 1
    print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
