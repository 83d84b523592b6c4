"""`paddlepool export`: publish a network with given weights as a model version."""

import argparse
from pathlib import Path

from paddlepool.cli.shared import add_repository_option, repository_root, silence
from paddlepool.making.export.publish import ORIGINS, Origin

NETWORKS = ("bert", "mnist", "u2net", "u2netp")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument(
        "--weights",
        type=Path,
        required=True,
        help=".npz, .safetensors or .onnx file; for bert a Hugging Face directory",
    )
    add_repository_option(parser)
    parser.add_argument(
        "--name", help="the model's name in the repository (default: the network's)"
    )
    parser.add_argument("--version", type=int, help="default: one more than the highest present")
    parser.add_argument(
        "--store",
        choices=("float32", "float16"),
        default="float32",
        help="how parameters are stored; computation is always in float32",
    )
    parser.add_argument(
        "--origin", choices=ORIGINS, required=True, help="origin of the weights; shown by /info"
    )
    parser.add_argument("--source", default="", help="free text: data, recipe, source")
    parser.add_argument("--licence", default="", help="licence of the weights")
    parser.add_argument("--preview", action="store_true", help="mark the weights as preliminary")


def run(args: argparse.Namespace) -> int:
    silence()
    # Paddle takes seconds to import; `paddlepool --help` must not.
    from paddlepool.making.export.exporter import export_version, read_recipe

    directory = export_version(
        read_recipe(args.network, args.weights),
        repository=repository_root(args.repository),
        name=args.name or args.network,
        origin=Origin(args.origin, source=args.source, licence=args.licence, preview=args.preview),
        store=args.store,
        version=args.version,
    )
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{directory}: {size / 1e6:.1f} MB")
    return 0
