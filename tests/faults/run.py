"""Plant each fault of `tests/faults/*.toml` and check that the tests it names find it.

    .venv/bin/python -m tests.faults.run [AREA ...]

Every fault is applied to a copy of the working tree, so the checkout stays as it is. A fault is
found when its tests fail with it and pass without it. Exit code 1 when any fault was not found.
`make faults` runs two areas at a time.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HUNG_SECONDS = 900
LEFT_OUT = (".git", ".venv*", ".mypy_cache", ".ruff_cache", ".pytest_cache", "runs", "*.egg-info")
FOUND, NOT_FOUND, NO_FIT = "found", "NOT FOUND", "does not apply"


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    find: str
    replace: str
    tests: list[str]


def main() -> int:
    areas = sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("areas", nargs="*", choices=(*areas, []), metavar="AREA")
    chosen = parser.parse_args().areas or areas
    counts: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="faults_") as directory:
        if (ROOT.parent / "shared").exists():  # data that some tests read beside the project
            (Path(directory) / "shared").symlink_to(ROOT.parent / "shared")
        copy = copy_tree(Path(directory) / "copy")
        for area in chosen:
            text = (Path(__file__).parent / f"{area}.toml").read_text("utf-8")
            for fault in (Fault(**table) for table in tomllib.loads(text)["fault"]):
                verdict, why = plant(fault, copy)
                counts[verdict] += 1
                print(f"{verdict:14} {area}: {fault.what} {why}".rstrip(), flush=True)
    print(f"{counts.total()} faults:", ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    return 0 if counts[FOUND] == counts.total() else 1


def copy_tree(target: Path) -> Path:
    """Copy the working tree; the environments are linked, because nothing changes them."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for environment in ROOT.glob(".venv*"):
        (target / environment.name).symlink_to(environment)
    return target


def plant(fault: Fault, copy: Path) -> tuple[str, str]:
    """Apply the fault to the copy, run its tests, and restore the file."""
    sound, faulty = ROOT / fault.file, copy / fault.file
    text = sound.read_text("utf-8") if sound.exists() else ""
    if (times := text.count(fault.find)) != 1:
        return NO_FIT, f"(`find` occurs {times} times in {fault.file})"
    faulty.write_text(text.replace(fault.find, fault.replace), "utf-8")
    try:
        code, why = run_tests(fault.tests, copy)
    finally:
        shutil.copy2(sound, faulty)
    if code == 0:
        return NOT_FOUND, f"({why})"
    if code != 1:
        return NO_FIT, f"(pytest ended with {code}: {why})"
    # A test that fails on its own finds nothing. pytest knows its name, whatever is in it.
    code, _ = run_tests(fault.tests, copy, "--last-failed")
    return (FOUND, f"({why})") if code == 0 else (NO_FIT, f"(fails without it, too: {why})")


def import_path(copy: Path) -> str:
    """PYTHONPATH with the copy's packages, which processes of tests import as well.

    They would otherwise import the installed packages, which are those of the checkout.
    """
    return os.pathsep.join(str(copy / folder) for folder in ("app", "clients/python/src"))


def run_tests(tests: list[str], copy: Path, cache: str = "--cache-clear") -> tuple[int, str]:
    """Return pytest's exit code and its line about the first failure, or its last line."""
    # The client has a configuration of its own, which knows no nightly tests.
    options = ["-c", "pyproject.toml", "-x", "-q", "-n0", "-m", "not nightly", cache]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    running = subprocess.Popen(
        command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": import_path(copy)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = running.communicate(timeout=HUNG_SECONDS)
    except subprocess.TimeoutExpired:
        return 1, f"nothing ended within {HUNG_SECONDS} s"
    finally:  # also after a signal: with the tests end the servers that they started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    lines = output.splitlines() or errors.splitlines() or [""]
    return running.returncode, next(
        (x for x in lines if x.startswith(("FAILED ", "ERROR tests/"))), lines[-1]
    )


if __name__ == "__main__":
    sys.exit(main())
