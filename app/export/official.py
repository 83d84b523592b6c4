"""The official U²-Netp weights file, or one said to replace it, as the next model version."""

from pathlib import Path

from app.contracts.errors import ExportError
from app.export.exporter import Origin, export_version
from app.export.publish import published_version
from app.export.recipe import read_recipe
from app.export.weights.release import Release, sha256_of


def import_u2netp(
    file: Path, *, repository: Path, release: Release, origin: Origin | None = None
) -> Path:
    """Publishes the weights in `file` as the next version of u2netp, or returns the one it has.

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
    if existing := published_version(repository / "u2netp", digest):
        return existing
    recipe = read_recipe("u2netp", file)
    return export_version(recipe, repository=repository, name="u2netp", origin=origin)
