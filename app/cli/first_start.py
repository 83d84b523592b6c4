"""The user's own repository, for a server with neither a configured one nor ./model_repo."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from app.contracts.errors import ConfigError
from app.models.repository.shipped import fill, located, shipped_models, untouched, user_repository
from app.settings.server import Settings

PULLED = "u2netp"
PULL_TIMEOUT = 15
"""Seconds for each source of the official weights: a dead network must not block the start."""

logger = logging.getLogger("paddlepool.server")


def repository(settings: Settings) -> Path:
    """Return the model repository to serve.

    If none was chosen and there is no ./model_repo, this is the user's own repository. The first
    call fills it with the shipped models. While its U²-Netp is unchanged, each call tries to add
    the official weights. Files that the user has changed are never overwritten. Raises ConfigError.
    """
    configured = settings.model_repository
    if settings.repository_is_chosen or configured.exists():
        return configured
    models, own = shipped_models(), user_repository()
    if models is None or own is None:
        return located(configured, chosen=False)
    if not own.exists():
        try:
            fill(own, models)
        except OSError as error:
            if not own.exists():  # otherwise another server has created it
                raise ConfigError(f"cannot make a model repository at {own}: {error}") from error
        logger.info("the shipped models were copied to %s", own)
    if untouched(own / PULLED, models):
        _pull(own)
    logger.info("the model repository is %s", own)
    return own


def _pull(root: Path) -> None:
    from app.making.export.publish import published_version
    from app.making.export.release import RELEASES

    if published_version(root / PULLED, RELEASES[PULLED].sha256):
        return
    logger.info("looking for the official weights of %s", PULLED)
    # A separate process, because it imports Paddle. -P: do not import `app` from the working
    # directory.
    command = [sys.executable, "-P", "-m", "app.cli", "pull", PULLED, "--if-possible"]
    command += ["--timeout", str(PULL_TIMEOUT), "--repository", str(root)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    for line in (done.stdout + done.stderr).splitlines():
        logger.info("%s", line)
