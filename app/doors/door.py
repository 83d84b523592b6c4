"""What a door declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter

from app.api.problems import ErrorForm
from app.settings import Settings

TAG = "compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One format in front of one task. Several of one name are switched together.

    `routes` is called once at start. Where a client is known by `agents`, parts of its User-Agent,
    `paths` lead it from paths that have another form to the door's own.
    """

    name: str
    task: str
    routes: Callable[[Settings], APIRouter]
    errors: ErrorForm
    headers: tuple[str, ...] = ()
    """Its own reply headers: pages of PADDLEPOOL_CORS_ORIGINS may read them."""
    agents: tuple[bytes, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
