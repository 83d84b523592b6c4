"""`paddlepool tune`: find the predictors, threads and batch size that serve a model best.

With --groups: find the best of the model's instance groups, across backends and precisions.
"""

import argparse
import asyncio
import sys

from paddlepool.cli.shared import add_repository_option, read_model
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.resources import available_cores
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.evidence.comparison.result import (
    align_columns,
    compare,
    comparison_rows,
    reasons,
    recommend,
    seconds,
)
from paddlepool.evidence.comparison.search import Search, explain, write_default_group, write_group
from paddlepool.tasks.task import comparison_of

REQUESTS = 40
"""Runs of each group with --groups: this many alone, and at least this many on busy cores."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of the repository")
    parser.add_argument(
        "--p95",
        type=float,
        metavar="MS",
        help="maximum 95th percentile of the milliseconds in the engine; optional with --groups",
    )
    parser.add_argument(
        "--groups",
        metavar="all|A,B,…",
        help="compare these instance groups and recommend one of them as the default group",
    )
    parser.add_argument("--yes", action="store_true", help="with --groups: write without asking")
    add_repository_option(parser)
    parser.add_argument(
        "--seconds", type=float, default=9.0, help="seconds of load for each candidate (default 9)"
    )
    parser.add_argument("--dry-run", action="store_true", help="do not change config.toml")


def run(args: argparse.Namespace) -> int:
    """Find the best configuration or group, and write it to config.toml.

    Nothing is written with --dry-run, or if the best group is the default group already, or if the
    user does not consent to another one. Returns 1 and writes nothing if nothing is fast enough.
    Raises ConfigError for wrong options, and the errors of read_model(), of Search.run() or
    compare(), and of write_group() or write_default_group().
    """
    for name in ("p95", "seconds"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} must be above 0, received {value}")
    if args.groups is not None:
        return _choose_group(args)
    if args.p95 is None:
        raise ConfigError("--p95 MS or --groups is required")
    if args.yes:
        raise ConfigError("--yes belongs to --groups")
    return _tune(args)


def _choose_group(args: argparse.Namespace) -> int:
    files = read_model(args)
    names = () if args.groups == "all" else (files.config.default_group, *args.groups.split(","))
    comparison = compare(
        files,
        groups=names,
        requests=REQUESTS,
        open_predictor=ProcessBackend(nice=0),
        task=comparison_of(files.info()),
    )
    print(align_columns(comparison_rows(comparison)) + "\n")
    print("\n".join(reasons(comparison)))
    advice = recommend(comparison, files.config, p95_seconds=args.p95 / 1000 if args.p95 else None)
    if not advice.fit:
        print(f"\nNothing is fast enough: {advice.reason}; config.toml is unchanged")
        return 1
    print(f"\nRecommended: {advice.group}: {advice.reason}.")
    chosen_here = files.config.first_group is not None
    path = files.directory.parent / "config.toml"
    instead = ' instead of "auto", which measures at runtime' if chosen_here else ""
    if advice.group == files.config.default_group:
        is_it = 'is what "auto" begins with' if chosen_here else "is already the default group"
        print(f"{advice.group} {is_it}; config.toml is unchanged")
    elif args.dry_run:
        print("config.toml is unchanged (--dry-run)")
    elif args.yes or _confirm(f"Make {advice.group} the default group in {path}{instead}?"):
        write_default_group(path, advice.group)
        print(f"written to {path}")
    else:
        print("config.toml is unchanged")
    return 0


def _confirm(question: str) -> bool:
    """Ask for consent on the terminal. Without a terminal, say how to consent and return False."""
    if not sys.stdin.isatty():
        print(f"{question} There is no terminal to ask: use --yes")
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _tune(args: argparse.Namespace) -> int:
    files = read_model(args)
    cores = max(1, int(available_cores()))
    search = Search(
        files=files,
        p95_seconds=args.p95 / 1000,
        cores=cores,
        seconds=args.seconds,
        open_predictor=ProcessBackend(nice=0),
        comparison_of=comparison_of,
    )
    chosen, outcomes = asyncio.run(search.run())
    rows = [
        {
            "configuration": ("* " if outcome is chosen else "  ") + str(outcome.configuration),
            "clients": str(outcome.clients),
            "per second": f"{outcome.per_second:.2f}",
            "p95": seconds(outcome.p95_seconds),
            "alone": seconds(outcome.alone_seconds),
            f"within {args.p95:g} ms": "yes" if outcome.p95_seconds <= args.p95 / 1000 else "no",
            "memory": f"{outcome.resident_bytes / 1e6:.0f} MB",
        }
        for outcome in outcomes
    ]
    print(f"{files.name}@{files.version}, group {files.config.default_group}, {cores} cores")
    print(align_columns([list(rows[0]), *(list(row.values()) for row in rows)]))
    if chosen is None:
        fastest = min(outcomes, key=lambda outcome: outcome.p95_seconds)
        print(
            f"\nnothing is fast enough: the lowest p95 is {seconds(fastest.p95_seconds)} "
            f"({fastest.configuration}); config.toml is unchanged"
        )
        return 1
    print("\n" + "\n".join(explain(chosen, outcomes, p95_seconds=args.p95 / 1000)))
    if args.dry_run:
        print("config.toml is unchanged (--dry-run)")
        return 0
    path = files.directory.parent / "config.toml"
    write_group(path, chosen.configuration, inputs=[spec.name for spec in files.manifest.inputs])
    print(f"written to {path}")
    return 0
