"""`paddlepool graph`: show the operators that a model runs, what was fused, and their times."""

import argparse
from dataclasses import asdict
from pathlib import Path

from paddlepool.cli.shared import add_model_options, read_model, write_json
from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.graph import draw, profile_graph
from paddlepool.evidence.comparison.result import align_columns

TOP = 15


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument(
        "--group",
        help="an instance group of Paddle Inference (default: the model's default group, or the "
        "first one of Paddle Inference if that is of another backend)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every operator")


def run(args: argparse.Namespace) -> int:
    files = read_model(args)
    fitting = [g.name for g in files.config.instance_group if g.backend == "paddle_inference"]
    if not fitting:
        raise ConfigError(
            f"{args.model} has no instance group of Paddle Inference; others show no program"
        )
    usual = files.config.default_group
    name = args.group or (usual if usual in fitting else fitting[0])
    if name not in fitting:
        raise ConfigError(
            f"--group must be one of {', '.join(fitting)}: other groups have no optimised program"
        )
    graph = profile_graph(files, name)
    total = graph.milliseconds
    print(
        f"{graph.model}, group {graph.group}, {graph.threads} thread(s): {graph.before} operators "
        f"exported, {len(graph.operators)} left after fusion, {total:.2f} ms\n"
    )
    rows = [["operator", "count", "ms", "share"]]
    rows += [
        [label, str(count), f"{time:.3f}", f"{time / total:.1%}"]
        for label, count, time in graph.by_kind()
    ]
    print(align_columns(rows))
    timed = [(operator.milliseconds, n, operator) for n, operator in enumerate(graph.operators, 1)]
    rows = [["place", "operator", "shape", "ms", "share"]]
    rows += [
        [str(place), operator.label, operator.size, f"{time:.3f}", f"{time / total:.1%}"]
        for time, place, operator in sorted(timed, key=lambda row: -row[0])[:TOP]
    ]
    print("\n" + align_columns(rows))
    if args.svg is not None:
        args.svg.write_text(draw(graph), "utf-8")
    if args.json is not None:
        write_json(args.json, asdict(graph))
    return 0
