"""The list of all doors, and the selection of those that are open."""

from __future__ import annotations

from collections.abc import Container

from app.doors import hugging_face, paddlex, rembg, removebg, tei
from app.doors.door import Door

DOORS: tuple[Door, ...] = (
    rembg.DOOR,
    removebg.DOOR,
    tei.DOOR,
    hugging_face.BOTH,
    hugging_face.TEXTS,
    hugging_face.PICTURES,
    paddlex.DOOR,
)


def open_doors(names: Container[str], tasks: Container[str]) -> tuple[Door, ...]:
    """Return the doors with these names whose task is served."""
    return tuple(door for door in DOORS if door.name in names and door.task in tasks)
