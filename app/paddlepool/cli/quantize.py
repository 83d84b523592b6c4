"""`paddlepool quantize`: publish a version with an int8 program, made from sample files."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from paddlepool.cli.shared import add_repository_option, read_model
from paddlepool.contracts.errors import ConfigError, ExportError
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.comparison.measure import choose_samples
from paddlepool.making.export.publish import template, versions_of
from paddlepool.making.programs import qdq
from paddlepool.making.programs.derive import (
    FILE,
    INT8,
    Derived,
    differences,
    named_graph,
    publish_with,
)
from paddlepool.making.programs.rewrite import rewritten
from paddlepool.models.repository.inputs import ARRAYS
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.manifest import (
    Calibration,
    Derivation,
    DerivedProgram,
    MeasuredLoss,
)
from paddlepool.tasks.task import comparison_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".txt", ARRAYS)
EVERY = 10
PROBES = 4
MARGIN = 3
"""An instance group gets this many times --budget, because each sample alone tests the group."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL")
    add_repository_option(parser)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help=f"pictures, .txt files with one text per line, or {ARRAYS} files with an array for "
        f"each input. Every {EVERY}th file by name is held out for the check",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=0.005,
        metavar="LOSS",
        help="largest mean difference from the reference's outputs; default: 0.005",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=300,
        metavar="N",
        help="files for calibration, and at most as many for the check; default: 300",
    )


def run(args: argparse.Namespace) -> int:
    if not 0 < args.budget < 1:
        raise ConfigError(f"--budget must be between 0 and 1, received {args.budget}")
    if args.samples < 1:
        raise ConfigError(f"--samples must be at least 1, received {args.samples}")
    if not args.data.is_dir():
        raise ConfigError(f"no such folder: {args.data} (--data names it)")
    files = read_model(args)
    every = sorted(path for path in args.data.iterdir() if path.suffix.lower() in SUFFIXES)
    holdout = set(every[::EVERY])
    calibrated = qdq.chosen([path for path in every if path not in holdout], args.samples)
    held_out = qdq.chosen(list(holdout), args.samples)
    if len(holdout) < 2 or not calibrated:
        raise ExportError(f"{args.data} holds {len(every)} files, needed are at least {EVERY + 1}")
    # Read both before the search, which takes minutes, to report unreadable files first.
    samples, judges = _samples(files, calibrated), _samples(files, held_out)
    reference = named_graph(files)
    arranged = rewritten(reference)
    model = arranged.model
    print(f"{args.model}/{files.version}: calibrating on {len(calibrated)} files", flush=True)
    ranges = qdq.measure_ranges(model, samples, float_nodes=arranged.float_nodes)
    print("int8 layers and their loss:")
    tried = 0

    def show(what: str, loss: float) -> None:
        nonlocal tried
        tried += 1
        print(f"  {loss:.4f}  {what}", flush=True)

    loss_of = differences(reference, samples[:: max(1, len(samples) // PROBES)][:PROBES])
    ranges = qdq.find_float_layers(model, ranges, args.budget, loss_of=loss_of, show=show)
    small = qdq.quantised(model, ranges)
    loss = differences(reference, judges)(small)
    floats = ", ".join(ranges.float_layers) or "none"
    summary = (
        f"mean difference {loss:.4f} on {len(held_out)} held-out files "
        f"(budget {args.budget:g}); float: {floats}; {tried} programs measured"
    )
    if not loss <= args.budget:
        raise ExportError(f"not published: {summary}")
    sealed = max(differences(reference, [case.inputs])(small) for case in files.selftest().cases)
    if not sealed <= MARGIN * args.budget:
        raise ExportError(
            "not published: on an input of the self-test, the mean difference is "
            f"{sealed:.3g}, and no group would start with more than {MARGIN * args.budget:g}; "
            f"calibrate with other files, or with a larger --budget: {summary}"
        )
    if not set(qdq.layers_of(model)) - set(ranges.float_layers):
        raise ExportError(f"not published: no layer would be int8: {summary}")
    entry = DerivedProgram(
        name=INT8,
        format="onnx",
        program=FILE,
        derivation=Derivation(
            tool="paddlepool quantize",
            versions=versions_of(qdq.TOOLS),
            settings={"budget": args.budget, "bias_correction": False, "per_channel": True},
            float_layers=ranges.float_layers,
        ),
        calibration=Calibration(
            data=args.data.name, count=len(calibrated), sha256=qdq.digest_of(calibrated)
        ),
        quality=(
            MeasuredLoss(
                data=f"every {EVERY}th file of {args.data.name}",
                count=len(held_out),
                figures={"mean difference": round(loss, 5)},
            ),
        ),
    )
    derived = Derived(content=small.SerializeToString(), entry=entry, backend="openvino")
    print(f"published {publish_with(files.directory, derived)}: {summary}")
    if all(group.program != INT8 for group in files.config.instance_group):
        print(f"no instance group runs it yet; add one to {args.model}/config.toml:")
        budget = f"{MARGIN * args.budget:g}"
        print("\n" + template("quantised", program=INT8, budget=budget), end="")
    return 0


def _samples(files: ModelFiles, paths: Sequence[Path]) -> list[Tensors]:
    chosen = choose_samples(
        comparison_of(files.info()), paths, files.selftest(), files.manifest.inputs
    )
    return [inputs for _, inputs in chosen]
