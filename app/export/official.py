"""An official U²-Net weights file, or one said to replace it, as the next model version."""

from pathlib import Path

from app.contracts.errors import ExportError
from app.export.exporter import Origin, export_version
from app.export.publish import published_version
from app.export.recipe import read_recipe
from app.export.weights.release import Release, sha256_of


def import_u2netp(
    file: Path, *, repository: Path, release: Release, origin: Origin | None = None
) -> Path:
    """import_u2net() for the model that is served by default."""
    return import_u2net("u2netp", file, repository=repository, release=release, origin=origin)


def import_u2net(
    model: str, file: Path, *, repository: Path, release: Release, origin: Origin | None = None
) -> Path:
    """Publishes the weights in `file` as the next version of `model` (u2netp, u2net or
    u2net_human_seg), or returns the version that has them.

    Without `origin` the file must be the official release. Raises ExportError otherwise.
    """
    if not file.is_file():
        raise ExportError(f"no file at {file}")
    digest = sha256_of(file)
    if digest == release.sha256:
        origin = Origin("official release", source=release.source, licence=release.licence)
    elif origin is None:
        raise ExportError(
            f"{file.name} has sha256 {digest}, the official release has {release.sha256}; "
            "say --origin to import other weights"
        )
    if existing := published_version(repository / model, digest):
        return existing
    # Human segmentation is the full network, trained on other pictures.
    recipe = read_recipe("u2netp" if model == "u2netp" else "u2net", file)
    return export_version(recipe, repository=repository, name=model, origin=origin)
