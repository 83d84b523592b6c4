"""Comparisons as text: columns for a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width

from app.evidence.comparison.result import Comparison, GroupResult

Rows = Sequence[Sequence[str]]


def columns(rows: Rows) -> str:
    """Left-aligned columns two spaces apart."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Rows) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def comparison_rows(found: Comparison) -> list[list[str]]:
    concurrent = any(each.concurrent_per_second is not None for each in found.groups)
    head = ["group", "threads", "p50", "p95", "× default", "speed-up", "drift", "mean difference"]
    head += [found.agreement_name] if found.agreement_name else []
    head += ["effective", "memory"]
    head += ["busy: instances", "busy: p50", "busy: per second"] if concurrent else []
    return [head, *(_row(found, each, concurrent) for each in found.groups)]


def _row(found: Comparison, each: GroupResult, concurrent: bool) -> list[str]:
    default = " (default)" if each.group == found.default_group else ""
    cells = [
        each.group + default,
        str(each.threads),
        seconds(each.p50_seconds),
        seconds(each.p95_seconds),
        f"{each.ratio_to_default:.2f}",
        f"{1 / each.ratio_to_slowest:.1f}",
        f"{each.max_abs_drift:.1e}" if each.max_abs_drift else "0",
        f"{each.mean_difference:.1e}" if each.mean_difference else "0",
    ]
    if found.agreement_name:
        cells.append("-" if each.agreement is None else f"{each.agreement:.4f}")
    cells += [effective(each.effective), f"{each.resident_bytes / 1e6:.0f} MB"]
    if concurrent:
        busy = each.concurrent_p50_seconds, each.concurrent_per_second
        cells += (
            ["-", "-", "-"]
            if busy[0] is None or busy[1] is None
            else [str(each.instances), seconds(busy[0]), f"{busy[1]:.2f}"]
        )
    return cells


def reasons(found: Comparison) -> list[str]:
    """The finding for each group, and why the others were left out or refused."""
    lines = [f"{each.group}: {each.reason}" for each in found.groups]
    lines += [f"{group}: left out on all cores: {why}" for group, why in found.not_busy.items()]
    return lines + [f"{group}: refused: {why}" for group, why in found.refused.items()]


def effective(value: bool | None) -> str:
    return {True: "yes", False: "NO", None: "unproven"}[value]


def seconds(value: float) -> str:
    """A time with three digits: 0.412 s, 41.2 ms."""
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.3g} ms"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
