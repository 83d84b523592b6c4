"""Which route template a path belongs to, known before routing: caps, keys and labels need it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.routing import APIRoute

from app.api.problems import ErrorForm


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """One route: its template, methods, the statuses it documents and its body's cap in bytes;
    `errors` where it has a form of its own for them."""

    template: str
    pattern: re.Pattern[str]
    methods: frozenset[str]
    statuses: frozenset[int]
    max_body: int | None
    errors: ErrorForm | None = None


class RouteTable:
    """All routes of the application; `find` takes a decoded path."""

    def __init__(
        self,
        routers: Iterable[tuple[APIRouter, Iterable[int], ErrorForm | None]],
        *,
        default_max_body: int,
    ) -> None:
        """Each router comes with the error statuses of all its routes, and their form.

        `default_max_body` in bytes is for routes that declare no `max_body_size`.
        """
        self.default_max_body = default_max_body
        self.routes = tuple(
            RouteFacts(
                template=route.path,
                pattern=route.path_regex,
                methods=frozenset(route.methods or ()),
                statuses=frozenset(
                    {route.status_code or 200, *map(int, route.responses), *statuses}
                ),
                max_body=route.max_body_size,
                errors=errors,
            )
            for router, statuses, errors in routers
            for route in router.routes
            if isinstance(route, APIRoute)
        )

    def find(self, path: str) -> RouteFacts | None:
        """The first route whose template matches, whatever the method."""
        return next(self.all(path), None)

    def all(self, path: str) -> Iterator[RouteFacts]:
        """Every route whose template matches, in their order."""
        return (route for route in self.routes if route.pattern.match(path))

    def body_cap(self, route: RouteFacts | None) -> int:
        if route is None or route.max_body is None:
            return self.default_max_body
        return route.max_body
