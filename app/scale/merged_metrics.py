"""Merges the metrics of several servers; each sample is labelled with its server."""

from __future__ import annotations

from collections.abc import Mapping


def merged(texts: Mapping[str, str], *, label: str) -> str:
    """Merge expositions in Prometheus' text format, given by server.

    Each sample gets `label` with the server's name; each family is described once.
    """
    descriptions: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for server, text in texts.items():
        mark = f'{label}="{server}"'
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, family, _ = line.split(" ", 3)
                descriptions.setdefault(family, {}).setdefault(kind, line)
            elif line:
                samples.setdefault(family, []).append(_marked(line, mark))
    lines = [
        line
        for family, described in descriptions.items()
        for line in (*described.values(), *samples.get(family, ()))
    ]
    return "\n".join(lines) + "\n"


def _marked(sample: str, mark: str) -> str:
    """Adds a label to `name{a="b"} 1` or `name 1`."""
    name, space, value = sample.partition(" ")
    head, brace, _ = name.partition("{")
    if brace:
        return f"{head}{{{mark},{sample[len(head) + 1 :]}"
    return f"{name}{{{mark}}}{space}{value}"
