"""Routes about a model: each for the version that answers, and again for one by its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

MODEL = "/v2/models/{model}"
VERSION = "/v2/models/{model}/versions/{version}"


def add_by_version(
    routes: APIRouter,
    tail: str,
    one: Callable[..., Any],
    by_number: Callable[..., Any],
    *,
    operation: str,
    **options: Any,
) -> None:
    """`one` takes `model`, `by_number` also `version`; `options` are those of add_api_route."""
    routes.add_api_route(MODEL + tail, one, operation_id=f"model{operation}", **options)
    routes.add_api_route(
        VERSION + tail, by_number, operation_id=f"modelVersion{operation}", **options
    )
