"""Coverage-guided fuzzing of every target, two at a time (extra `fuzz`: Atheris).

    .venv/bin/python -m tests.fuzz.run [--seconds 60] [--keep] [TARGET ...]

What reaches new code is written to runs/fuzz, what breaks a target to tests/fuzz/corpus; the
ordinary tests run both. `--keep` lets libFuzzer copy what reaches code that no committed file does.
Exit code 1 when a target broke.
"""

import argparse
import hashlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "corpus"
"""Committed. A directory for each target; what broke one lies there, too, as `crash-…`."""
FOUND = ROOT / "runs" / "fuzz"
"""What runs on this machine have found; not committed."""

TOGETHER = 2
MOST_BYTES = 4096
"""Of one input: what breaks a reader is small."""
INPUT_SECONDS = 5.0
"""Of processor time: an input that takes more breaks the target."""
HUNG_SECONDS = 600
"""Of any time, so that an endless loop ends; a machine that stands still is no fault."""
MEMORY_MB = 2048
INSTRUMENTED = ["paddlepool", "python_multipart", "starlette", "tomllib", "uvicorn"]
NAMES = ("http", "multipart", "tensors", "repository_files", "picture_header", "child_answer")


def main() -> int:
    if sys.argv[2:3] == ["--here"]:
        fuzz(sys.argv[1], sys.argv[3:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", choices=(*NAMES, []), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="add to the committed corpus")
    arguments = parser.parse_args()
    options = {
        "max_total_time": arguments.seconds,
        "timeout": HUNG_SECONDS,
        "report_slow_units": HUNG_SECONDS,
        "rss_limit_mb": MEMORY_MB,
        "dict": Path(__file__).parent / "words.dict",
    }

    def run(name: str) -> subprocess.CompletedProcess[str]:
        new, old = FOUND / name, KEPT / name
        done = here(name, *(f"-{key}={value}" for key, value in options.items()), new, old)
        return here(name, "-merge=1", old, new) if arguments.keep and not done.returncode else done

    broken = False
    with ThreadPoolExecutor(TOGETHER) as pool:
        names = arguments.targets or NAMES
        for name, done in zip(names, pool.map(run, names), strict=True):
            broken |= done.returncode != 0
            lines = done.stderr.splitlines()
            print(f"{name}: {lines[-1] if lines else 'said nothing'}", flush=True)
            if done.returncode:
                print("\n".join(lines[-40:]), flush=True)
    return 1 if broken else 0


def here(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    """libFuzzer with these options in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--here", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True)


def fuzz(name: str, options: list[str]) -> None:
    """Ends the process: with 0 when the time is up, otherwise when the target broke."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS

    target, seeds = TARGETS[name]
    for directory in (new := FOUND / name, corpus := KEPT / name):
        directory.mkdir(parents=True, exist_ok=True)
    for data in seeds():
        (new / hashlib.sha1(data).hexdigest()).write_bytes(data)  # libFuzzer's names

    def run(data: bytes) -> None:
        began = time.process_time()
        target(data)
        assert time.process_time() - began < INPUT_SECONDS, "it took too long"

    myself = f"{sys.executable} -m tests.fuzz.run {name} --here"  # libFuzzer starts it to merge
    prefix = f"-artifact_prefix={corpus}/"
    atheris.Setup([myself, f"-max_len={MOST_BYTES}", prefix, *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
