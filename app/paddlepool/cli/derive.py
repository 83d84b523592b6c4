"""`paddlepool derive`: make the int8 programs that need no calibration data."""

import argparse
import sys
from pathlib import Path

from paddlepool.cli.shared import add_repository_option, open_repository, read_version
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.evidence.comparison.measure import choose_samples
from paddlepool.making.programs import derive
from paddlepool.making.programs.derive import INT8
from paddlepool.making.programs.shipped import shipped_ranges
from paddlepool.models.repository.manifest import Manifest, read_manifest
from paddlepool.tasks.task import comparison_of

SAMPLES = {
    "segment": ("docs/images/astronaut.jpg", "training/u2netp/pictures/*.jpg"),
    "sentiment": ("training/emotion/*.jsonl",),
}
"""Patterns of sample files by task, relative to the working directory: that of a checkout. If no
file matches, the task's own samples are used."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="default: every model with a program"
    )
    add_repository_option(parser)


def run(args: argparse.Namespace) -> int:
    """Derive the int8 program of each named model, by default of all but composed ones.

    Prints a line for each. Returns 1 if any model fails with a PaddlepoolError, and 0 otherwise.
    """
    repository = open_repository(args.repository)
    failed = 0
    composed = repository.composed_names()
    for name in args.models or [name for name in repository.names() if name not in composed]:
        try:
            print(derive_program(repository.root, name), flush=True)
        except PaddlepoolError as error:
            print(f"paddlepool derive: {name}: {error.message}", file=sys.stderr)
            failed = 1
    return failed


def derive_program(root: Path, name: str) -> str:
    """Derive, check and publish the int8 program of a model's newest version; return a summary.

    The program is added to the version itself, after the rest of an interrupted attempt is removed.
    Nothing is added if the version has such a program, if a package is missing, or if the program
    needs calibration data; the summary then says so, or that no instance group of config.toml runs
    the new program. A program made with one of OLD_TOOLS is replaced. Raises the errors of
    read_version(), derive_int8(), comparison_of(), choose_samples(), checked() and add_program().
    """
    repository = open_repository(root)
    if name not in repository.composed_names():  # which read_version() rejects
        for version in repository.versions(name)[:1]:
            derive.remove_unlisted(root / name / str(version), derive.FILE)
    files = read_version(repository, name)
    where = f"{name}/{files.version}"
    if _has_program(files.manifest):
        return f"{where} has the program {INT8}"
    if missing := derive.missing_packages():
        packages = ", ".join(missing)
        return f"{where}: no program {INT8} without {packages}; see docs/application.md"
    derived = derive.derive_int8(files)
    if derived is None:
        return f"{where}: `paddlepool quantize {name}` would make a program {INT8}, from data"
    task = comparison_of(files.info())
    patterns = SAMPLES.get(files.config.pipeline or "", ())
    data = [path for pattern in patterns for path in sorted(Path().glob(pattern))]
    selftest = files.selftest()
    samples = [inputs for _, inputs in choose_samples(task, data, selftest, files.manifest.inputs)]
    derived = derive.checked(
        derived,
        files,
        [selftest.inputs, *samples],
        agreement=task.agreement if task else None,
        least_agreement=task.least_agreement if task else 0.0,
        open_predictor=ProcessBackend(),
    )
    derive.add_program(files.directory, derived)
    [*_, loss] = derived.entry.quality
    figures = ", ".join(f"{key} {value:.4f}" for key, value in loss.figures.items())
    summary = f"{where}: program {INT8} added; {figures} on {loss.count} {loss.data}"
    if all(group.program != INT8 for group in files.config.instance_group):
        summary += "; no instance group runs it yet: docs/programs.md shows one"
    return summary


def derive_hint(version: Path) -> str:
    """Return a clause that names the command which would add the program int8 to a version.

    It is empty if the version has the program, or if the package has no ranges for its weights.
    Raises ManifestError.
    """
    manifest = read_manifest(version)
    if _has_program(manifest) or shipped_ranges(str(manifest.weights.get("sha256"))) is None:
        return ""
    return f"`paddlepool derive {version.parent.name}` makes its program {INT8}"


def _has_program(manifest: Manifest) -> bool:
    """Return whether there is a program int8 that none of OLD_TOOLS made."""
    tools = [program.derivation.tool for program in manifest.programs if program.name == INT8]
    return bool(tools) and not set(tools).intersection(derive.OLD_TOOLS)
