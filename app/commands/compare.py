"""`paddlepool compare`: a model's predictor groups on the same inputs, with proof of effect."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

REQUESTS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model of the repository")
    parser.add_argument("--version", type=int, help="default: the newest")
    parser.add_argument(
        "--repository",
        type=Path,
        help="default: the setting PADDLEPOOL_MODEL_REPOSITORY, or ./model_repo",
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="pictures, or text files with one text a line; default: a built-in spread",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=None,
        help=f"runs of each group (default {REQUESTS}; with --claims as many as published)",
    )
    parser.add_argument(
        "--groups", default="", metavar="A,B,…", help="default: every instance group"
    )
    parser.add_argument(
        "--alone", action="store_true", help="leave out the runs that keep every core busy"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a .png or .svg plot")
    parser.add_argument(
        "--claims",
        action="store_true",
        help="measure the two published tables of speed-ups instead of a model's groups",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="DIR",
        help="with --claims: also compare the models, and write comparison.md and its plots there",
    )


def run(args: argparse.Namespace) -> int:
    from app.errors import ConfigError

    if args.requests is not None and args.requests < 1:
        raise ConfigError("--requests must be at least 1", received=args.requests)
    if args.plot is not None:
        from app.comparison.plot import check_plot

        check_plot(args.plot)
    if args.claims:
        return _claims(args)
    if args.model is None:
        raise ConfigError("name a MODEL, or --claims")
    if args.docs is not None:
        raise ConfigError("--docs belongs to --claims")
    return _compare(args)


def _compare(args: argparse.Namespace) -> int:
    from app.backends.process import ProcessBackend
    from app.commands.models import open_repository, read_version
    from app.comparison.run import Plan, compare
    from app.comparison.table import columns, comparison_rows, reasons
    from app.pipelines import PIPELINES

    found = compare(
        Plan(
            files=read_version(open_repository(args.repository), args.model, args.version),
            groups=tuple(name for name in args.groups.split(",") if name),
            inputs=tuple(args.inputs),
            requests=args.requests or REQUESTS,
            concurrent=not args.alone,
        ),
        open_predictor=ProcessBackend(nice=0),
        pipelines=PIPELINES,
    )
    print(f"{found.model}@{found.version} on {found.machine}")
    print(f"{found.groups[0].requests} requests a group over: {', '.join(found.samples)}\n")
    print(columns(comparison_rows(found)))
    print()
    for line in reasons(found):
        print(line)
    print(f"\n{found.budgets()}")
    if args.json is not None:
        text = json.dumps(found.as_json(), ensure_ascii=False, indent=2)
        args.json.write_text(text + "\n", "utf-8")
    if args.plot is not None:
        from app.comparison.plot import plot_comparison

        plot_comparison(found, args.plot)
    return 0


def _claims(args: argparse.Namespace) -> int:
    raise NotImplementedError
