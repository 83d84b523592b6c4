"""The models that come with the program, and the user's own repository, a copy of them."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from app.models.repository.files import user_path

PACKED = Path(__file__).parents[1] / "shipped"
"""Where setup.py puts the models of `model_repo/` in a wheel."""
CHECKOUT = Path(__file__).parents[3] / "model_repo"


def shipped_models() -> Path | None:
    """Return the repository that was installed with the program or lies in its checkout, if any."""
    return next((root for root in (PACKED, CHECKOUT) if root.is_dir()), None)


def user_repository() -> Path | None:
    """Return the path of this user's repository, whether or not it exists; see user_path()."""
    return user_path("XDG_DATA_HOME", ".local/share", "model_repo")


def located(configured: Path, *, chosen: bool) -> Path:
    """Return `configured`, or the user's own repository if only that exists.

    `chosen` is True if an operator chose `configured`, which is then returned even if it does not
    exist. It is False if `configured` is the default.
    """
    if chosen or configured.exists():
        return configured
    own = user_repository()
    return own if own is not None and exists(own) else configured


def exists(path: Path) -> bool:
    """Return whether a path exists; False, unlike Path.exists(), where the user may not look."""
    return os.path.exists(path)  # noqa: PTH110


def fill(root: Path, models: Path) -> None:
    """Copy the shipped `models` to `root`, which must not exist. Raises OSError.

    The repository appears complete or not at all; after an interrupted copy, the next start copies
    again.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".staging-", dir=root.parent) as staging:
        copy = Path(staging) / root.name
        shutil.copytree(
            models,
            copy,
            copy_function=shutil.copyfile,  # copies no modes: the user owns the files
            ignore=shutil.ignore_patterns(".*", "__pycache__"),
        )
        copy.rename(root)


def untouched(model: Path, models: Path) -> bool:
    """Return True if a model's directory has exactly the entries that were shipped, by name."""
    shipped = models / model.name
    if not model.is_dir() or not shipped.is_dir():
        return False
    return {each.name for each in model.iterdir()} == {each.name for each in shipped.iterdir()}
