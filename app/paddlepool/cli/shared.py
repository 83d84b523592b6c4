"""Helpers of several commands: find repositories and models, write JSON, silence Paddle."""

import argparse
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from paddlepool.contracts.errors import ConfigError, ManifestError, ModelNotFound
from paddlepool.models.repository import files
from paddlepool.models.repository.layout import ComposedFiles, ModelFiles, ModelRepository
from paddlepool.settings.server import Settings, explain

PULLED = "u2netp"
PULL_TIMEOUT = 15
"""Timeout in seconds for each source of the official weights, which must not block the start."""

logger = logging.getLogger("paddlepool.server")


def add_repository_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="default: PADDLEPOOL_MODEL_REPOSITORY, else ./model_repo, else the"
        " repository that `paddlepool serve` has created for this user",
    )


def add_model_options(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """Declare MODEL, --version and --repository; see read_model()."""
    parser.add_argument("model", nargs=nargs, metavar="MODEL", help="a model of the repository")
    parser.add_argument("--version", type=int, help="default: the newest")
    add_repository_option(parser)


def repository_root(chosen: Path | None) -> Path:
    """Return `chosen`, else the configured repository.

    If none is configured and the default one does not exist, return the user's own repository if
    that exists. Raises ConfigError if a setting is invalid.
    """
    if chosen:
        return chosen
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigError(explain(error)) from error
    return files.located(settings.model_repository, chosen=settings.repository_is_chosen)


def open_repository(chosen: Path | None) -> ModelRepository:
    return ModelRepository(repository_root(chosen))


def check_model(repository: ModelRepository, name: str) -> None:
    """Raise ModelNotFound with the name and the directory, which the server's clients may not see.

    Raises ConfigError if the repository cannot be read.
    """
    if name not in repository.names():
        raise ModelNotFound(f"no model {name!r} is in the repository {repository.root}")


def read_model(args: argparse.Namespace) -> ModelFiles:
    """Read and verify the version that the options of add_model_options() name.

    Raises the errors of repository_root() and read_version().
    """
    repository = open_repository(args.repository)
    return read_version(repository, args.model, getattr(args, "version", None))


def read_version(repository: ModelRepository, name: str, version: int | None = None) -> ModelFiles:
    """Read and verify a version, by default the newest.

    Raises ModelNotFound for an unknown model or version, ConfigError for an invalid config.toml and
    for a composed model, ManifestError if no version is published or the version is damaged, and
    OSError.
    """
    check_model(repository, name)
    versions = repository.versions(name)
    if not versions:
        raise ManifestError(f"{name}: no version with a manifest is published")
    return repository.read(name, versions[0] if version is None else version)


def read_any_version(repository: ModelRepository, name: str) -> ModelFiles | ComposedFiles:
    """Read and verify the newest version of a model, which may be composed.

    Raises the errors of read_version().
    """
    check_model(repository, name)
    if not repository.config(name).parts:
        return read_version(repository, name)
    if versions := repository.versions(name):
        return repository.read_composed(name, versions[0])
    raise ManifestError(f"{name}: no version with a manifest is published")


def served_repository(settings: Settings) -> Path:
    """Return the model repository to serve.

    If none was chosen and there is no ./model_repo, this is the user's own repository. The first
    call fills it with the shipped models. While its U²-Netp is unchanged, each call tries to add
    the official weights. Files that the user has changed are never overwritten. Without shipped
    models or a home, nothing is made, and the result may not exist. Raises ConfigError if the
    repository cannot be made.
    """
    configured = settings.model_repository
    if settings.repository_is_chosen or configured.exists():
        return configured
    models, own = files.shipped_models(), files.user_repository()
    if models is None or own is None:
        return files.located(configured, chosen=False)
    if not files.exists(own):
        try:
            files.fill(own, models)
        except OSError as error:
            if not files.exists(own):  # otherwise another server has created it
                raise ConfigError(f"cannot make a model repository at {own}: {error}") from error
        logger.info("the shipped models were copied to %s", own)
    if files.untouched(own / PULLED, models):
        _pull(own)
    logger.info("the model repository is %s", own)
    return own


def _pull(root: Path) -> None:
    from paddlepool.making.export.publish import published_version
    from paddlepool.making.export.release import RELEASES

    if published_version(root / PULLED, RELEASES[PULLED].sha256):
        return
    logger.info("looking for the official weights of %s", PULLED)
    # A separate process, because it imports Paddle. -P: no module of the working directory.
    command = [sys.executable, "-P", "-m", "paddlepool.cli", "pull", PULLED, "--if-possible"]
    command += ["--timeout", str(PULL_TIMEOUT), "--repository", str(root)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    for line in filter(None, (done.stdout + done.stderr).split("\n")):
        logger.info("%s", line)


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")


def silence() -> None:
    """Silence messages of Paddle that users of a command cannot act on. Call before its import."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    # ccache speeds up builds of custom C++ operators; this project has none.
    warnings.filterwarnings("ignore", message="No ccache found")


@contextmanager
def quiet_children() -> Iterator[None]:
    """Hide log lines of child processes in the block, except errors.

    Blocks may overlap in several threads.
    """
    printed = logging.getLogger("paddlepool.child")

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    printed.addFilter(drop)  # a level could not be restored by whichever block ends last
    try:
        yield
    finally:
        printed.removeFilter(drop)
