"""The metrics of several servers as one text, each sample with the name of its server."""

from __future__ import annotations

from collections.abc import Mapping


def merged(texts: Mapping[str, str], *, label: str) -> str:
    """Expositions in Prometheus' text format, by server, as one.

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
    """`name{a="b"} 1` or `name 1` with one label more."""
    name, space, value = sample.partition(" ")
    head, brace, _ = name.partition("{")
    if brace:
        return f"{head}{{{mark},{sample[len(head) + 1 :]}"
    return f"{name}{{{mark}}}{space}{value}"
