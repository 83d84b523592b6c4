"""The free `[parameters]` table of a config.toml, read as the type that a task gives it."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.repository.config import faults_of

Table = TypeVar("Table", bound=BaseModel)


def parse_parameters(info: ServedModelInfo, kind: type[Table]) -> Table:
    """Raises ConfigError that names the model and each wrong key."""
    try:
        return kind.model_validate(dict(info.parameters))
    except ValidationError as error:
        raise ConfigError(f"{info.name}: {faults_of(error, 'parameters')}") from error
