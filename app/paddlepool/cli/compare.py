"""`paddlepool compare`: measure a model's instance groups on the same inputs.

It also reports which groups were proven to differ in outputs or times from the group with which
config.toml compares them.
"""

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from paddlepool.cli.shared import add_model_options, read_model, write_json
from paddlepool.contracts.errors import ConfigError
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.evidence.comparison.plot import check_plot, plot_comparison
from paddlepool.evidence.comparison.result import (
    align_columns,
    compare,
    comparison_rows,
    reasons,
    recommend,
)
from paddlepool.tasks.task import comparison_of

REQUESTS = 20
FOR_CLAIMS = ("repository", "requests", "json", "plot", "docs")


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, nargs="?")
    parser.add_argument(
        "--input",
        dest="inputs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="pictures, text files with one text per line, or .npz files with an array for each "
        "input; default: built-in samples",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=None,
        help=f"runs of each instance group (default {REQUESTS}; with --claims as published)",
    )
    parser.add_argument(
        "--groups",
        default="",
        metavar="A,B,…",
        help="only these groups (default: all); without the default group, A is the reference",
    )
    parser.add_argument(
        "--alone", action="store_true", help="skip the runs that keep every core busy"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a .png or .svg plot")
    parser.add_argument(
        "--claims",
        action="store_true",
        help="measure the two published tables of speed-ups instead (needs a checkout)",
    )
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="with --claims: write the page and its plots there"
    )


def run(args: argparse.Namespace) -> int:
    if args.requests is not None and args.requests < 1:
        raise ConfigError(f"--requests must be at least 1, received {args.requests}")
    if args.plot is not None:
        check_plot(args.plot)
    if args.claims:
        return _claims(args)
    if args.model is None:
        raise ConfigError("name a MODEL, or --claims")
    if args.docs is not None:
        raise ConfigError("--docs belongs to --claims")
    files = read_model(args)
    comparison = compare(
        files,
        groups=tuple(name for name in args.groups.split(",") if name),
        inputs=tuple(args.inputs),
        requests=args.requests or REQUESTS,
        concurrent=not args.alone,
        open_predictor=ProcessBackend(nice=0),
        task=comparison_of(files.info()),
    )
    print(f"{comparison.model}@{comparison.version} on {comparison.machine}")
    print(
        f"{comparison.groups[0].requests} requests a group over: {', '.join(comparison.samples)}\n"
    )
    print(align_columns(comparison_rows(comparison)))
    if comparison.default_group != files.config.default_group:
        print(f"\n{comparison.default_group} is the reference instead of the default group.")
    print()
    print("\n".join(reasons(comparison)))
    print(f"\n{comparison.budgets()}")
    advice = recommend(comparison, files.config)
    print(f"Recommended: {advice.group}: {advice.reason}.")
    if args.json is not None:
        write_json(args.json, comparison.as_json() | {"recommended": asdict(advice)})
    if args.plot is not None:
        plot_comparison(comparison, args.plot)
    return 0


def _claims(args: argparse.Namespace) -> int:
    """Run loadtest/claims.py of the checkout that contains this package; return its exit code.

    Raises ConfigError if the package is not in a checkout.
    """
    script = Path(__file__).parents[3] / "loadtest" / "claims.py"
    if not script.exists():
        raise ConfigError("--claims runs loadtest/claims.py, which only a checkout has")
    arguments = {
        name: getattr(args, name) for name in FOR_CLAIMS if getattr(args, name) is not None
    }
    options = [f"--{name}={value}" for name, value in arguments.items()]
    return subprocess.run([sys.executable, str(script), *options], check=False).returncode
