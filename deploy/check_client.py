"""Build the Python client, and test what was built in an empty environment of each Python.

    python3 deploy/check_client.py [--output dist] [PYTHON…]

Without PYTHON, every supported interpreter that is on the path or among pyenv's is used. Wheel and
source distribution are built once; the tests come from the source distribution and run against the
wheel. Needs the package registry. Exit code 1 if a test failed or a named PYTHON cannot run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

CLIENT = Path(__file__).resolve().parents[1] / "clients" / "python"
PREFIX = "Programming Language :: Python :: 3."
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def supported() -> list[str]:
    """Versions of Python that the client's classifiers name, as `3.10`."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [line.removeprefix(PREFIX) for line in project["classifiers"]]
    return [f"3.{minor}" for minor in names if minor.isdigit()]


def version_of(python: str) -> str | None:
    """Return the version that an interpreter says it has, as `3.10`; None if it cannot run."""
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def installed_pythons() -> dict[str, str]:
    """Return one interpreter for each supported version that has one on this machine."""
    pythons = {}
    for version in supported():
        for python in candidates(version):
            if version_of(python) == version:
                pythons[version] = python
                break
    return pythons


def candidates(version: str) -> Iterator[str]:
    if version_of(sys.executable) == version:
        yield sys.executable
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python3")))


def build(target: Path, scratch: Path) -> tuple[Path, Path]:
    """Build in a copy, because a build leaves files behind; return the wheel and the source."""
    source, tools = scratch / "source", scratch / "tools"
    unwanted = shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*cache")
    shutil.copytree(CLIENT, source, ignore=unwanted)
    run(sys.executable, "-m", "venv", tools)
    run(tools / "bin" / "python", *PIP, "install", "build")
    made = scratch / "made"
    run(tools / "bin" / "python", "-m", "build", "--outdir", made, source, quiet=True)
    [wheel], [archive] = made.glob("*.whl"), made.glob("*.tar.gz")
    target.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, target)), Path(shutil.copy(archive, target))


def test(python: str, wheel: Path, archive: Path, scratch: Path) -> None:
    """Install the wheel in a new environment, run the tests of the archive. Raises on failure."""
    environment = scratch / "environment"
    run(python, "-m", "venv", environment)
    own = environment / "bin" / "python"
    run(own, *PIP, "install", f"{wheel}[test]")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    [unpacked] = scratch.glob("paddlepool_client-*")
    shutil.rmtree(unpacked / "src")  # the installed package is tested
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", unpacked / "tests"]
    run(*command, directory=unpacked)


def run(*command: str | Path, directory: Path | None = None, quiet: bool = False) -> None:
    subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        stdout=subprocess.DEVNULL if quiet else None,
        check=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, help="where wheel and source distribution are kept")
    parser.add_argument("python", nargs="*", metavar="PYTHON")
    args = parser.parse_args(arguments)
    pythons = {version_of(python) or "": python for python in args.python} or installed_pythons()
    if "" in pythons:
        print(f"cannot run: {pythons['']}", file=sys.stderr)
        return 1
    failed = []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        wheel, archive = build(args.output or scratch / "dist", scratch)
        for version, python in pythons.items():
            print(f"Python {version}: {python}", flush=True)
            place = scratch / version
            place.mkdir()
            try:
                test(python, wheel, archive, place)
            except subprocess.CalledProcessError:
                failed.append(version)
    missing = [version for version in supported() if version not in pythons]
    print(f"{wheel.name}: passed on {', '.join(v for v in pythons if v not in failed) or 'none'}")
    if missing:
        print(f"not tested: {', '.join(missing)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or not pythons else 0


if __name__ == "__main__":
    sys.exit(main())
