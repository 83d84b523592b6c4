"""`paddlepool compare`: a model's instance groups on the same inputs, with proof of effect."""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.repository import add_repository_option, open_repository, read_version

if TYPE_CHECKING:
    from app.comparison.claims import ClaimTable

REQUESTS = 20
BERT_SOURCE = Path(__file__).parents[1] / "networks" / "bert.py"
REQUESTS_FOR_DOCS = {"u2netp": 12, "emotion": 200}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model of the repository")
    parser.add_argument("--version", type=int, help="default: the newest")
    add_repository_option(parser)
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
        help=f"runs of each instance group (default {REQUESTS}; with --claims as published)",
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
        help="measure the two published tables of speed-ups instead of a model's instance groups",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="DIR",
        help="with --claims: also compare the models, and write comparison.md and its plots there",
    )


def run(args: argparse.Namespace) -> int:
    from app.contracts.errors import ConfigError

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
    from app.comparison.run import Plan, compare
    from app.comparison.table import columns, comparison_rows, reasons
    from app.pipelines import PIPELINES
    from app.pipelines.task import comparison_of, load_tasks

    found = compare(
        Plan(
            files=read_version(open_repository(args.repository), args.model, args.version),
            groups=tuple(name for name in args.groups.split(",") if name),
            inputs=tuple(args.inputs),
            requests=args.requests or REQUESTS,
            concurrent=not args.alone,
        ),
        open_predictor=ProcessBackend(nice=0),
        comparison_of=partial(comparison_of, tasks=load_tasks(PIPELINES)),
    )
    print(f"{found.model}@{found.version} on {found.machine}")
    print(f"{found.groups[0].requests} requests a group over: {', '.join(found.samples)}\n")
    print(columns(comparison_rows(found)))
    print()
    for line in reasons(found):
        print(line)
    print(f"\n{found.budgets()}")
    if args.json is not None:
        _write_json(args.json, found.as_json())
    if args.plot is not None:
        from app.comparison.plot import plot_comparison

        plot_comparison(found, args.plot)
    return 0


def _write_json(file: Path, values: object) -> None:
    file.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")


def _claims(args: argparse.Namespace) -> int:
    """Returns 1 when a published ratio is not exceeded by any row that claims it."""
    from dataclasses import asdict

    from tqdm import tqdm

    from app.backends.process import (
        BACKEND_ENVIRONMENT,
        TUNED_ALLOCATOR,
        ProcessBackend,
    )
    from app.comparison.claims import (
        BERT_REQUESTS,
        U2NETP_REQUESTS,
        Backends,
        beaten,
        measure_bert,
        measure_u2netp,
        runs_of,
    )
    from app.comparison.machine import describe_machine
    from app.comparison.page import claim_text
    from app.engine.pool.thread_budget import available_cores

    u2netp = read_version(open_repository(args.repository), "u2netp", None)
    bert = read_version(open_repository(_random_bert()), "bert-base-random", None)
    cores = available_cores()
    backends = Backends(
        served=ProcessBackend(nice=0),
        tuned=ProcessBackend(
            nice=0,
            environments={**BACKEND_ENVIRONMENT, "paddle_dygraph": TUNED_ALLOCATOR},
        ),
    )
    pictures, texts = args.requests or U2NETP_REQUESTS, args.requests or BERT_REQUESTS
    pictures = min(pictures, U2NETP_REQUESTS)
    whole = max(1, int(cores))
    total = runs_of(pictures, texts, cores=whole)
    with tqdm(total=total, desc="claims", unit="run", disable=None) as bar:
        tables = [
            measure_u2netp(u2netp, backends, requests=pictures, cores=whole, tick=bar.update),
            measure_bert(bert, backends, requests=texts, cores=whole, tick=bar.update),
        ]
    machine = describe_machine(cores=cores)
    print(machine)
    for table in tables:
        print(f"\n{claim_text(table)}")
    behind = [name for table in tables for name, ahead in beaten(table).items() if not ahead]
    if args.json is not None:
        _write_json(args.json, {"machine": machine, "tables": [asdict(table) for table in tables]})
    if args.plot is not None:
        from app.comparison.plot import plot_claims

        plot_claims(tables, args.plot)
    if args.docs is not None:
        _write_docs(args, machine, tables)
    if behind:
        print(f"\nnot ahead of the published ratio: {', '.join(behind)}")
        return 1
    print("\nahead of every published ratio")
    return 0


def _random_bert() -> Path:
    """A repository in the cache that holds a BERT of bert-base's shape; made when it is missing.

    Another revision of the network has a place of its own: what was exported from an older one
    would be compared with today's dynamic graph.
    """
    from app.commands.paddle_noise import silence
    from app.commands.pull import default_cache

    revision = hashlib.sha256(BERT_SOURCE.read_bytes()).hexdigest()[:12]
    root = default_cache() / "measured-models" / revision
    if not (root / "bert-base-random" / "1" / "manifest.json").exists():
        silence()
        from app.export.weights.random_bert import export_random_bert

        root.mkdir(parents=True, exist_ok=True)
        export_random_bert(root)
    return root


def _write_docs(args: argparse.Namespace, machine: str, tables: list[ClaimTable]) -> None:
    """comparison.md, and beside it images/compare-*.svg: the claims, then two models."""
    from app.backends.process import ProcessBackend
    from app.comparison.claims import LENGTHS, PADDED
    from app.comparison.page import page
    from app.comparison.plot import plot_claims, plot_comparison
    from app.comparison.run import Plan, compare
    from app.pipelines import PIPELINES
    from app.pipelines.task import comparison_of, load_tasks

    images = args.docs / "images"
    images.mkdir(parents=True, exist_ok=True)
    repository = open_repository(args.repository)
    with_plots = []
    for table, name in zip(tables, ("u2netp", "bert"), strict=True):
        plot_claims([table], images / f"compare-claims-{name}.svg")
        with_plots.append((table, f"images/compare-claims-{name}.svg"))
    comparisons = []
    for model, most in REQUESTS_FOR_DOCS.items():
        found = compare(
            Plan(
                files=read_version(repository, model, None),
                requests=min(args.requests or most, most),
            ),
            open_predictor=ProcessBackend(nice=0),
            comparison_of=partial(comparison_of, tasks=load_tasks(PIPELINES)),
        )
        plot_comparison(found, images / f"compare-{model}.svg")
        comparisons.append((found, f"images/compare-{model}.svg"))
    requests = f" --requests {args.requests}" if args.requests else ""
    text = page(
        command=f"paddlepool compare --claims{requests} --docs docs",
        machine=machine,
        tables=with_plots,
        comparisons=comparisons,
        lengths=", ".join(map(str, LENGTHS)),
        padded=PADDED,
    )
    (args.docs / "comparison.md").write_text(text, "utf-8")
