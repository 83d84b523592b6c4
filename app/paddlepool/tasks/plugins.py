"""Finds and imports additions to the server, such as tasks, by entry points or a setting."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import NamedTuple, TypeVar

from paddlepool import __version__
from paddlepool.contracts.errors import ConfigError

OWN = f"paddlepool {__version__}"
"""The `origin` of a Declaration that the server itself contains."""

T = TypeVar("T")


class Declaration(NamedTuple):
    """A declared name, such as that of a task, with a reference to the object that it stands for.

    `reference` is `module` or `module:attribute`. `origin` is the distribution with its version, or
    the environment variable that declares the name.
    """

    name: str
    reference: str
    origin: str


def declarations(
    group: str, *, own: Mapping[str, str], configured: Mapping[str, str], variable: str
) -> list[Declaration]:
    """Return the server's own declarations, then those of entry points, then the configured ones.

    `group` is the group of the entry points. `own` and `configured` map names to references;
    `variable` is the environment variable with the configured ones. If a name is
    declared twice with the same reference, only the first declaration is returned. Raises
    ConfigError if the references differ.
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
    """Import a module and return the declared object, an attribute of the module.

    `default` is the name of the attribute if the reference has none. Raises ConfigError if the
    module cannot be imported, or if the attribute is missing or no instance of `kind`.
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
    """Return the file and line of imported code that raised the error; empty for other errors."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
