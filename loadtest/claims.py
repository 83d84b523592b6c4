"""The two published tables of speed-ups, measured on this machine.

    .venv/bin/python loadtest/claims.py [--requests N] [--json FILE] [--plot FILE] [--docs DIR]

With `--docs docs` it also compares the served models' predictor groups, and writes
docs/comparison.md with its plots: `make comparison`. Exit code 1 when a published ratio is not
exceeded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from claim_tables import (
    BERT_REQUESTS,
    LENGTHS,
    PADDED,
    U2NETP_REQUESTS,
    Backends,
    ClaimTable,
    beaten,
    measure_bert,
    measure_u2netp,
)
from claims_page import claim_text, page, plot_claims
from harness import ROOT
from tqdm import tqdm

from app.backends.process import BACKEND_ENVIRONMENT, TUNED_ALLOCATOR, ProcessBackend
from app.commands.pull import default_cache
from app.commands.shared import add_repository_option, open_repository, read_version, silence
from app.comparison.plot import check_plot, plot_comparison
from app.comparison.run import Plan, compare
from app.contracts.errors import ConfigError, PaddlepoolError
from app.observability.build_info import describe_machine
from app.pipelines import PIPELINES
from app.pipelines.task import agreement_of, comparison_of, load_tasks
from app.resources import available_cores

BERT_SOURCE = ROOT / "app" / "networks" / "bert.py"
REQUESTS_FOR_DOCS = {"u2netp": 12, "emotion": 200}


def main(arguments: Sequence[str]) -> int:
    """Returns 1 when a published ratio is not exceeded by any row that measures it again."""
    args = _parsed(arguments)
    try:
        return _measure(args)
    except PaddlepoolError as error:
        print(f"claims: {error.message}", file=sys.stderr)
        return 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_repository_option(parser)
    parser.add_argument("--requests", type=int, help="fewer than were published")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a .png or .svg plot")
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="write comparison.md and its plots there"
    )
    return parser.parse_args(arguments)


def _measure(args: argparse.Namespace) -> int:
    if args.requests is not None and args.requests < 1:
        raise ConfigError("--requests must be at least 1", received=args.requests)
    if args.plot is not None:
        check_plot(args.plot)
    u2netp = read_version(open_repository(args.repository), "u2netp", None)
    bert = read_version(open_repository(random_bert()), "bert-base-random", None)
    cores = available_cores()
    backends = Backends(
        served=ProcessBackend(nice=0),
        tuned=ProcessBackend(
            nice=0, environments={**BACKEND_ENVIRONMENT, "paddle_dygraph": TUNED_ALLOCATOR}
        ),
        agreement_of=partial(agreement_of, tasks=load_tasks(PIPELINES)),
    )
    pictures = min(args.requests or U2NETP_REQUESTS, U2NETP_REQUESTS)
    texts = args.requests or BERT_REQUESTS
    whole = max(1, int(cores))
    with tqdm(desc="claims", unit="run", disable=None) as bar:
        tables = [
            measure_u2netp(u2netp, backends, requests=pictures, cores=whole, tick=bar.update),
            measure_bert(bert, backends, requests=texts, cores=whole, tick=bar.update),
        ]
    machine = describe_machine(cores=cores)
    print(machine)
    for table in tables:
        print(f"\n{claim_text(table)}")
    if args.json is not None:
        found = {"machine": machine, "tables": [asdict(table) for table in tables]}
        args.json.write_text(json.dumps(found, ensure_ascii=False, indent=2) + "\n", "utf-8")
    if args.plot is not None:
        plot_claims(tables, args.plot)
    if args.docs is not None:
        _write_docs(args, machine, tables)
    behind = [name for table in tables for name, ahead in beaten(table).items() if not ahead]
    if behind:
        print(f"\nnot ahead of the published ratio: {', '.join(behind)}")
        return 1
    print("\nahead of every published ratio")
    return 0


def random_bert() -> Path:
    """A repository in the cache that holds a BERT of bert-base's shape; made when it is missing.

    Another revision of the network has a place of its own: what was exported from an older one
    would be compared with today's dynamic graph.
    """
    revision = hashlib.sha256(BERT_SOURCE.read_bytes()).hexdigest()[:12]
    root = default_cache() / "measured-models" / revision
    if not (root / "bert-base-random" / "1" / "manifest.json").exists():
        silence()
        from random_bert import export_random_bert  # brings Paddle in; not before it is needed

        root.mkdir(parents=True, exist_ok=True)
        export_random_bert(root)
    return root


def _write_docs(args: argparse.Namespace, machine: str, tables: Sequence[ClaimTable]) -> None:
    """comparison.md, and beside it images/compare-*.svg: the claims, then two models."""
    images = args.docs / "images"
    images.mkdir(parents=True, exist_ok=True)
    repository = open_repository(args.repository)
    with_plots = []
    for table, name in zip(tables, ("u2netp", "bert"), strict=True):
        plot_claims([table], images / f"compare-claims-{name}.svg")
        with_plots.append((table, f"images/compare-claims-{name}.svg"))
    comparisons = []
    for model, most in REQUESTS_FOR_DOCS.items():
        requests = min(args.requests or most, most)
        found = compare(
            Plan(files=read_version(repository, model, None), requests=requests),
            open_predictor=ProcessBackend(nice=0),
            comparison_of=partial(comparison_of, tasks=load_tasks(PIPELINES)),
        )
        plot_comparison(found, images / f"compare-{model}.svg")
        comparisons.append((found, f"images/compare-{model}.svg"))
    shortened = f" --requests {args.requests}" if args.requests else ""
    text = page(
        command=f"loadtest/claims.py{shortened} --docs docs",
        machine=machine,
        tables=with_plots,
        comparisons=comparisons,
        lengths=", ".join(map(str, LENGTHS)),
        padded=PADDED,
    )
    (args.docs / "comparison.md").write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
