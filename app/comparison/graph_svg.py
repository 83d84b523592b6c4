"""A graph drawn as SVG: operators in the order they run, bars for their time, arcs for the data."""

from __future__ import annotations

from xml.sax.saxutils import escape

from app.comparison.graph import Graph, Operator

ROW, TOP = 18, 70
ARCS, LABEL, BAR = 220, 230, 330
COLOURS = ("#1f6feb", "#d9a441", "#2da44e", "#a371f7", "#cf5b4a", "#57a0a8", "#8c8f94")


def draw(graph: Graph) -> str:
    """The whole file. Skip connections are the wide arcs; hover for shapes and times."""
    operators = graph.operators
    names = list(dict.fromkeys(kind for kind, _, _ in graph.by_kind()))
    colour = {name: COLOURS[min(place, len(COLOURS) - 1)] for place, name in enumerate(names)}
    longest = max((each.milliseconds or 0.0 for each in operators), default=0.0) or 1.0
    width, height = ARCS + LABEL + BAR + 90, TOP + ROW * len(operators) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16">{escape(graph.model)}, group '
        f"{escape(graph.group)}: {len(operators)} operators of {graph.before} exported, "
        f"{graph.milliseconds:.1f} ms</text>",
        '<text x="12" y="44" fill="#57606a">in the order they run; bars are milliseconds on '
        f"{graph.threads} thread(s), arcs lead from a result to where it is used</text>",
    ]
    parts += [
        _arc(source, place) for place, each in enumerate(operators) for source in each.sources
    ]
    parts += [
        _row(place, each, colour[each.label], (each.milliseconds or 0.0) / longest)
        for place, each in enumerate(operators)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _middle(place: int) -> int:
    return TOP + ROW * place + ROW // 2


def _arc(source: int, target: int) -> str:
    start, end, distance = _middle(source), _middle(target), target - source
    if distance == 1:
        return (
            f'<path d="M{ARCS - 4} {start}V{end}" stroke="#8c8f94" fill="none" stroke-width="1"/>'
        )
    reach = min(ARCS - 20, 14 + 6 * distance)
    bend = ARCS - 4 - reach * 4 / 3
    return (
        f'<path d="M{ARCS - 4} {start}C{bend:.0f} {start} {bend:.0f} {end} {ARCS - 4} {end}" '
        'stroke="#1f6feb" fill="none" stroke-width="1" opacity="0.45"/>'
    )


def _row(place: int, each: Operator, colour: str, share: float) -> str:
    y, middle = TOP + ROW * place, _middle(place)
    shape = "×".join("?" if size == -1 else str(size) for size in each.shape)
    time = "not timed" if each.milliseconds is None else f"{each.milliseconds:.3g} ms"
    bar = ARCS + LABEL
    return (
        f"<g><title>{place + 1}. {escape(each.name)} {escape(shape)}: {time}</title>"
        f'<circle cx="{ARCS - 4}" cy="{middle}" r="3" fill="{colour}"/>'
        f'<text x="{ARCS + 6}" y="{middle + 4}">{escape(each.label)}'
        f'<tspan fill="#8c8f94"> {escape(shape)}</tspan></text>'
        f'<rect x="{bar}" y="{y + 3}" width="{max(1.0, BAR * share):.1f}" height="{ROW - 6}" '
        f'fill="{colour}"/>'
        f'<text x="{bar + BAR * share + 6:.1f}" y="{middle + 4}" fill="#57606a">{time}</text></g>'
    )
