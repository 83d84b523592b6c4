"""Measure the two published tables of speed-ups on this machine.

    .venv/bin/python loadtest/claims.py [--requests N] [--json FILE] [--plot FILE]
        [--docs DIR [--page NAME]]

With `--docs docs` it also compares the served models' instance groups, and writes
docs/comparison.md with its plots: `make comparison`. Exit code 1: a published ratio is not
exceeded.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from claim_tables import (
    BERT_REQUESTS,
    LENGTHS,
    PADDED,
    U2NETP_REQUESTS,
    ClaimTable,
    beaten,
    measured,
    plan_bert,
    plan_u2netp,
)
from harness import ROOT
from pages import filled, markdown_table
from tqdm import tqdm

from paddlepool.cli.pull import default_cache
from paddlepool.cli.shared import (
    add_repository_option,
    open_repository,
    read_version,
    silence,
    write_json,
)
from paddlepool.contracts.errors import ConfigError, PaddlepoolError
from paddlepool.contracts.resources import available_cores
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.evidence.comparison.plot import (
    DEFAULT,
    annotate,
    check_plot,
    open_figure,
    plot_comparison,
    save_figure,
)
from paddlepool.evidence.comparison.result import (
    Comparison,
    align_columns,
    compare,
    comparison_rows,
    reasons,
    seconds,
)
from paddlepool.observability.build_info import describe_machine
from paddlepool.tasks.task import comparison_of

BERT_SOURCE = ROOT / "app" / "paddlepool" / "models" / "networks" / "bert.py"
REQUESTS_FOR_DOCS = {"u2netp": 12, "emotion": 200}
WEIGHTS_DIGITS = 8
PUBLISHED = "#c0c4cc"
PAGE = "comparison"


def main(arguments: Sequence[str]) -> int:
    """Return 1 if no row that measures a published ratio exceeds it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_repository_option(parser)
    parser.add_argument("--requests", type=int, help="fewer than were published")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a .png or .svg plot")
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="write the page and its plots there"
    )
    parser.add_argument(
        "--page",
        default=PAGE,
        metavar="NAME",
        help=f"name of the page (default {PAGE}), so that each processor can have one",
    )
    try:
        return _measure(parser.parse_args(arguments))
    except PaddlepoolError as error:
        print(f"claims: {error.message}", file=sys.stderr)
        return 1


def _measure(args: argparse.Namespace) -> int:
    if args.requests is not None and args.requests < 1:
        raise ConfigError("--requests must be at least 1", received=args.requests)
    if args.plot is not None:
        check_plot(args.plot)
    u2netp = read_version(open_repository(args.repository), "u2netp", None)
    bert = read_version(open_repository(random_bert()), "bert-base-random", None)
    cores = available_cores()
    pictures = min(args.requests or U2NETP_REQUESTS, U2NETP_REQUESTS)
    texts = args.requests or BERT_REQUESTS
    whole = max(1, int(cores))
    with tqdm(desc="claims", unit="run", disable=None) as bar:
        tables = [
            measured(plan, files, requests=requests, cores=whole, tick=bar.update)
            for plan, files, requests in (
                (plan_u2netp(u2netp, cores=whole), u2netp, pictures),
                (plan_bert(bert, requests=texts, cores=whole), bert, texts),
            )
        ]
    machine = describe_machine(cores=cores)
    print(machine)
    for table in tables:
        print(f"\n{table.title}: {table.unit}\n{align_columns(claim_rows(table))}")
        for name, reason in table.refused.items():
            print(f"{name}: refused: {reason}")
    if args.json is not None:
        results = {"machine": machine, "tables": [asdict(table) for table in tables]}
        write_json(args.json, results)
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
    """A cached repository with a BERT of bert-base's shape, created if it is missing.

    Each revision of the network has its own directory: an export of an older one would be compared
    with the current dynamic graph.
    """
    revision = hashlib.sha256(BERT_SOURCE.read_bytes()).hexdigest()[:12]
    root = default_cache() / "measured-models" / revision
    if not (root / "bert-base-random" / "1" / "manifest.json").exists():
        silence()
        from random_bert import export_random_bert  # imports Paddle, so only when needed

        root.mkdir(parents=True, exist_ok=True)
        export_random_bert(root)
    return root


def _write_docs(args: argparse.Namespace, machine: str, tables: Sequence[ClaimTable]) -> None:
    """Write the page and its images: the claims, then two models."""
    (args.docs / "images").mkdir(parents=True, exist_ok=True)
    claims: list[str] = []
    for table, name in zip(tables, ("u2netp", "bert"), strict=True):
        plot = f"images/{args.page}-claims-{name}.svg"
        plot_claims([table], args.docs / plot)
        claims += _claims(table, plot)
    repository = open_repository(args.repository)
    versions = [(read_version(repository, name, None), n) for name, n in REQUESTS_FOR_DOCS.items()]
    compared = [
        compare(
            files,
            requests=min(args.requests or most, most),
            open_predictor=ProcessBackend(nice=0),
            task=comparison_of(files.info()),
        )
        for files, most in versions
    ]
    comparisons: list[str] = []
    for comparison in compared:
        plot = f"images/{args.page}-{comparison.model}.svg"
        plot_comparison(comparison, args.docs / plot)
        comparisons += _comparison(comparison, plot)
    shortened = f" --requests {args.requests}" if args.requests else ""
    named = f" --page {args.page}" if args.page != PAGE else ""
    text = filled(
        "comparison",
        command=f"loadtest/claims.py{shortened} --docs docs{named}",
        machine=machine,
        lengths=", ".join(map(str, LENGTHS)),
        padded=PADDED,
        claims="\n\n".join(claims),
        comparisons="\n\n".join(comparisons),
    )
    (args.docs / f"{args.page}.md").write_text(text, "utf-8")


def _claims(table: ClaimTable, plot: str) -> Iterator[str]:
    heads, *lines = claim_rows(table)
    yield f"### {table.title}"
    yield markdown_table(heads, lines)
    yield f"Seconds are {table.unit}; {table.requests:,} requests a row."
    for name, reason in table.refused.items():
        yield f"{name}: refused: {reason}"
    yield f"![{table.title}: published and measured speed-ups]({plot})"


def _comparison(comparison: Comparison, plot: str) -> Iterator[str]:
    heads, *lines = comparison_rows(comparison)
    weights = comparison.weights_sha256[:WEIGHTS_DIGITS]
    yield f"## {comparison.model}, version {comparison.version}, weights {weights}"
    yield f"{comparison.groups[0].requests} requests a group."
    yield markdown_table(heads, lines)
    yield "\n".join(f"- {line}" for line in reasons(comparison))
    yield f"![{comparison.model}: times and rates of its instance groups]({plot})"


def claim_rows(table: ClaimTable) -> list[list[str]]:
    head = ["", "threads", "published", "published ratio", "here", "ratio here", "ahead"]
    rows = [
        [
            row.label,
            row.threads,
            "-" if row.published_seconds is None else seconds(row.published_seconds),
            "-" if row.published_ratio is None else f"{row.published_ratio:.2f}",
            seconds(row.seconds),
            f"{row.ratio:.2f}",
            "-" if row.published_ratio in (None, 1.0) else "yes" if row.ahead else "no",
        ]
        for row in table.rows
    ]
    return [head, *rows]


def plot_claims(tables: Sequence[ClaimTable], file: Path) -> None:
    """Plot published and measured speed-ups over the dynamic graph, as bars."""
    figure, axes = open_figure(len(tables), width=9.6 * len(tables), height=4.6)
    for axis, table in zip(axes, tables, strict=True):
        names = [row.label for row in table.rows]
        published = [row.published_ratio or 0.0 for row in table.rows]
        ratios = [row.ratio for row in table.rows]
        places = list(range(len(names)))
        axis.barh([p + 0.2 for p in places], published, 0.38, color=PUBLISHED, label="published")
        axis.barh([p - 0.2 for p in places], ratios, 0.38, color=DEFAULT, label="measured here")
        for place, row in zip(places, table.rows, strict=True):
            if row.published_ratio is not None:
                annotate(axis, row.published_ratio, place + 0.2, f"{row.published_ratio:.1f}×")
            annotate(axis, row.ratio, place - 0.2, f"{row.ratio:.1f}×")
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.15 * max(*published, *ratios))
        axis.set_xlabel("times faster than the dynamic graph")
        axis.set_title(table.title, fontsize=10)
        axis.legend(fontsize=8, loc="upper right")
    save_figure(figure, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
