"""Declarations in other packages: entry points, and modules that a setting names."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import NamedTuple, TypeVar

from paddlepool import __version__
from paddlepool.contracts.errors import ConfigError

OWN = f"paddlepool {__version__}"
"""The origin of what the server itself declares."""

T = TypeVar("T")


class Declaration(NamedTuple):
    """A declared name, the `reference` to its object, and the `origin` of the declaration.

    `reference` is `module` or `module:attribute`. `origin` is a distribution and its version, or
    the variable that names the module.
    """

    name: str
    reference: str
    origin: str


def declarations(
    group: str, *, own: Mapping[str, str], configured: Mapping[str, str], variable: str
) -> list[Declaration]:
    """Return the server's own declarations, then those of entry points, then the configured ones.

    `own` and `configured` have the reference of each name; `variable` is the setting that
    configures. Raises ConfigError if two declarations have the same name and other references.
    """
    installed = [
        Declaration(entry.name, entry.value, f"{entry.dist.name} {entry.dist.version}")
        for entry in entry_points(group=group)
        if entry.dist is not None
    ]
    table: dict[str, Declaration] = {}
    for declaration in (
        *_declared(own, OWN),
        *sorted(installed),  # in an order that the file system does not decide
        *_declared(configured, variable),
    ):
        other = table.setdefault(declaration.name, declaration)
        if other.reference != declaration.reference:
            raise ConfigError(
                f"{other.origin} and {declaration.origin} both have {declaration.name!r} in "
                f"{group}: remove or rename one"
            )
    return list(table.values())


def _declared(modules: Mapping[str, str], origin: str) -> Iterable[Declaration]:
    return (Declaration(name, module, origin) for name, module in modules.items())


def load_declared(declaration: Declaration, default: str, kind: type[T]) -> T:
    """Import the declared object; `default` is its attribute if the reference names none.

    Raises ConfigError if the module cannot be imported or has no such object of this kind.
    """
    name, reference, origin = declaration
    module, _, attribute = reference.partition(":")
    attribute = attribute or default
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever the module does
        raise ConfigError(
            f"{name!r} of {origin}: {module} cannot be imported: "
            f"{type(error).__name__}: {error}{_place(error)}"
        ) from error
    value = getattr(imported, attribute, None)
    if not isinstance(value, kind):
        what = "is missing" if value is None else f"is a {type(value).__name__}"
        raise ConfigError(
            f"{name!r} of {origin}: {module}.{attribute} {what}, expected a {kind.__name__}"
        )
    return value


def _place(error: Exception) -> str:
    """Return the file and line that raised the error; empty if no module was found."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
