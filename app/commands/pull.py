"""`paddlepool pull u2netp`: fetch the official weights and publish them as the next version."""

import argparse
import os
from pathlib import Path

from app.commands.paddle_noise import silence
from app.commands.repository import add_repository_option, repository_root


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=("u2netp",))
    add_repository_option(parser)
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="give up after this long"
    )
    parser.add_argument("--cache", type=Path, default=None, help="where the download is kept")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from app.export.weights.download import download
    from app.export.weights.release import U2NETP_RELEASE, published_version, sha256_of

    release = U2NETP_RELEASE
    repository = repository_root(args.repository)
    if existing := published_version(repository / args.model, release.sha256):
        print(f"{existing} already holds the official release")
        return 0
    file = (args.cache or default_cache()) / f"{args.model}-{release.sha256[:12]}.onnx"
    if not file.exists() or sha256_of(file) != release.sha256:
        with tqdm(
            total=release.size, unit="B", unit_scale=True, disable=None, desc=args.model
        ) as bar:
            download(
                release, file, timeout=args.timeout, progress=lambda size: bar.update(size - bar.n)
            )
    silence()
    from app.export.weights.official import (
        import_u2netp,  # brings Paddle in; not before it is needed
    )

    print(f"published {import_u2netp(file, repository=repository, release=release)}")
    return 0


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paddlepool"
