"""`paddlepool tune`: find how many predictors, threads and rows a batch serve a model best here."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from app.commands.repository import add_repository_option, open_repository, read_version


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of the repository")
    parser.add_argument(
        "--p95",
        type=float,
        required=True,
        metavar="MS",
        help="the 95th percentile of the time in the engine must be at most this",
    )
    add_repository_option(parser)
    parser.add_argument(
        "--seconds", type=float, default=9.0, help="of load for each candidate (default 9)"
    )
    parser.add_argument("--dry-run", action="store_true", help="leave config.toml as it is")


def run(args: argparse.Namespace) -> int:
    """Returns 1 when nothing is fast enough; config.toml is not touched then."""
    from tqdm import tqdm

    from app.backends.process import ProcessBackend
    from app.comparison.config_edit import write_group
    from app.comparison.search import Search, most_ticks
    from app.comparison.table import columns
    from app.comparison.tuning import explain
    from app.contracts.errors import ConfigError
    from app.engine.pool.thread_budget import available_cores
    from app.pipelines import PIPELINES
    from app.pipelines.task import comparison_of, load_tasks

    for name in ("p95", "seconds"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name} must be above 0", received=getattr(args, name))
    repository = open_repository(args.repository)
    files = read_version(repository, args.model, None)
    cores = max(1, int(available_cores()))
    total = most_ticks(cores, buckets="buckets" in files.config.parameters)
    with tqdm(total=total, desc=f"tuning {files.name}", unit="turn", disable=None) as bar:
        chosen, outcomes = Search(
            files=files,
            p95_seconds=args.p95 / 1000,
            cores=cores,
            seconds=args.seconds,
            open_predictor=ProcessBackend(nice=0),
            comparison_of=partial(comparison_of, tasks=load_tasks(PIPELINES)),
            tick=bar.update,
            say=lambda text: bar.write(text, file=sys.stderr),
        ).run()
    rows = [["candidate", "clients", "per second", "p95", f"within {args.p95:g} ms", "memory"]]
    for each in outcomes:
        rows.append(
            [
                ("* " if each is chosen else "  ") + str(each.candidate),
                str(each.clients),
                f"{each.per_second:.2f}",
                f"{each.p95_seconds * 1000:.0f} ms",
                "yes" if each.p95_seconds <= args.p95 / 1000 else "no",
                f"{each.resident_bytes / 1e6:.0f} MB",
            ]
        )
    print(f"{files.name}@{files.version}, group {files.config.default_group}, {cores} cores")
    print(columns(rows))
    if chosen is None:
        fastest = min(outcomes, key=lambda each: each.p95_seconds)
        print(
            f"\nnothing is fast enough: the lowest p95 is {fastest.p95_seconds * 1000:.0f} ms "
            f"({fastest.candidate}); config.toml is unchanged"
        )
        return 1
    print("\n" + "\n".join(explain(chosen, outcomes, p95_seconds=args.p95 / 1000)))
    if args.dry_run:
        print("config.toml is unchanged (--dry-run)")
        return 0
    path = repository.root / files.name / "config.toml"
    write_group(
        path,
        chosen.candidate,
        lengths={spec.name: (1,) for spec in files.manifest.inputs},
    )
    print(f"written to {path}")
    return 0
