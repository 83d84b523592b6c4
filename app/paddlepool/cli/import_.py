"""`paddlepool import`: publish a downloaded model that was exported elsewhere.

`paddlepool import SOURCE` publishes every folder with an inference.yml, as PaddleX, PaddleOCR,
PaddleClas and PaddleSeg write it. `paddlepool import MODEL FILE` publishes weights of U²-Net.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from paddlepool.cli import shared
from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.result import align_columns
from paddlepool.making.export.publish import ORIGINS, Origin

NETWORKS = ("u2netp", "u2net", "u2net_human_seg")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="SOURCE",
        help="a folder, a .zip, .tar or .whl file, pypi:NAME==VERSION, or an address such as "
        f"hf://owner/repository@revision; or one of {', '.join(NETWORKS)}, with FILE",
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="the official MODEL.onnx, or with --origin any other",
    )
    shared.add_repository_option(parser)
    parser.add_argument("--name", help="the model's name; default: that of its inference.yml")
    parser.add_argument("--sha256", default="", help="the archive or wheel must have this digest")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="timeout for a download"
    )
    parser.add_argument("--origin", choices=ORIGINS, help="for a FILE that is not the release")
    parser.add_argument("--source", default="", help="free text: data, recipe, source")
    parser.add_argument("--licence", default="", help="licence of the weights")


def run(args: argparse.Namespace) -> int:
    shared.silence()
    repository = shared.repository_root(args.repository)
    if args.file is not None:
        print(f"published {_import_u2net(args, repository)}")
        return 0
    from paddlepool.cli.paddlex import import_source  # imports onnx

    if args.origin is not None:
        raise ConfigError("--origin belongs to MODEL FILE")
    for model in import_source(
        args.model,
        repository,
        name=args.name,
        sha256=args.sha256,
        timeout=args.timeout,
        text=args.source,
        licence=args.licence,
    ):
        print_facts(model.lines)
    print(f"next: paddlepool serve --model-repository {repository}")
    return 0


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print the first pair of label and text as a heading, and the others as a table below it."""
    (name, head), *rows = facts
    print(f"{name}: {head}")
    if rows:
        print(align_columns([(f"  {label}:", value) for label, value in rows]), flush=True)


def _import_u2net(args: argparse.Namespace, repository: Path) -> Path:
    if args.model not in NETWORKS:
        raise ConfigError(f"with FILE, name one of {', '.join(NETWORKS)} before it")
    if args.name or args.sha256:
        raise ConfigError("--name and --sha256 do not go with MODEL FILE")
    from paddlepool.making.export.exporter import import_u2net
    from paddlepool.making.export.release import RELEASES

    origin = Origin(args.origin, source=args.source, licence=args.licence) if args.origin else None
    return import_u2net(
        args.model,
        args.file,
        repository=repository,
        release=RELEASES[args.model],
        origin=origin,
    )
