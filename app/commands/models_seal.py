"""`paddlepool models seal`: makes a program that was exported elsewhere a version to be served."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.tables import print_table, shape_text

if TYPE_CHECKING:
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]


def add_seal(actions: Actions) -> None:
    seal = actions.add_parser(
        "seal", help="write the manifest of a Paddle or ONNX program that was exported elsewhere"
    )
    seal.add_argument(
        "directory",
        type=Path,
        metavar="MODEL/VERSION",
        help="holds NAME.json or NAME.pdmodel, and NAME.pdiparams unless it has no parameters; "
        "or NAME.onnx",
    )
    seal.add_argument("--source", default="", help="free text: where the weights came from")
    seal.add_argument("--licence", default="", help="licence of the weights")


def run_seal(args: argparse.Namespace) -> int:
    from app.backends.process import ProcessBackend
    from app.export.seal import seal

    sealed = seal(
        args.directory.resolve(),
        open_predictor=ProcessBackend(),
        source=args.source,
        licence=args.licence,
    )
    rows = [("TENSOR", "NAME", "DTYPE", "SHAPE")]
    for kind, specs in (("input", sealed.inputs), ("output", sealed.outputs)):
        rows += [(kind, spec.name, spec.dtype, shape_text(spec)) for spec in specs]
    print_table(rows)
    print()
    facts = {
        "rows": {
            True: "independent: requests may share a run",
            False: "not independent: each request runs alone",
            None: "none: the first axis is fixed",
        }[sealed.independent],
        "onednn": sealed.onednn or "equals the native kernels",
        "config.toml": "written" if sealed.config else "left as it is",
    }
    if sealed.unproven:
        facts["self-test"] = (
            f"knows only dtype and shape of {', '.join(sealed.unproven)}: empty for random input"
        )
    print_table([(f"{label}:", value) for label, value in facts.items()])
    return 0
