"""`paddlepool import MODEL FILE`: publish weights from a local file as the next version."""

import argparse
from pathlib import Path

from paddlepool.cli.shared import add_repository_option, repository_root, silence
from paddlepool.making.export.publish import ORIGINS, Origin


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=("u2netp", "u2net", "u2net_human_seg"))
    parser.add_argument(
        "file", type=Path, help="the official MODEL.onnx, or with --origin any other"
    )
    add_repository_option(parser)
    parser.add_argument("--origin", choices=ORIGINS, help="for a file that is not the release")
    parser.add_argument("--source", default="", help="free text: data, recipe, source")
    parser.add_argument("--licence", default="", help="licence of the weights")


def run(args: argparse.Namespace) -> int:
    silence()
    from paddlepool.making.export.exporter import import_u2net
    from paddlepool.making.export.release import RELEASES

    origin = Origin(args.origin, source=args.source, licence=args.licence) if args.origin else None
    root, release = repository_root(args.repository), RELEASES[args.model]
    directory = import_u2net(args.model, args.file, repository=root, release=release, origin=origin)
    print(f"published {directory}")
    return 0
