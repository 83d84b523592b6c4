"""A static graph as Paddle runs it: its operators, the time of each, and an SVG drawing."""

import json
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from xml.sax.saxutils import escape

from pydantic import TypeAdapter

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.process.child import Child, ChildDied
from paddlepool.engine.process.environment import Limits
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.selftest import too_small

TARGET = "paddlepool.engine.backends.paddle_profile:open_profile"
PROFILE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as Paddle runs it, with the operators `fused` into it.

    `sources` are the indices, in Graph.operators, of the operators whose results it reads. `shape`
    is that of its first output, -1 for a free axis. `milliseconds` is its median time over several
    runs.
    """

    name: str
    fused: tuple[str, ...]
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    milliseconds: float

    @property
    def label(self) -> str:
        return " + ".join((self.name.rpartition(".")[2], *self.fused))

    @property
    def size(self) -> str:
        return "×".join("?" if size == -1 else str(size) for size in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A profiled graph, its operators in the order they run.

    `before` is the number of operators of the exported program, without constants. `added` contains
    the name and milliseconds of each operator that the executor added.
    """

    model: str
    group: str
    threads: int
    before: int
    operators: tuple[Operator, ...]
    added: tuple[tuple[str, float], ...]

    @property
    def milliseconds(self) -> float:
        own = sum(operator.milliseconds for operator in self.operators)
        return own + sum(time for _, time in self.added)

    def by_kind(self) -> list[tuple[str, int, float]]:
        """Return label, count and total milliseconds of each kind of operator, slowest first."""
        times: defaultdict[str, list[float]] = defaultdict(list)
        for operator in self.operators:
            times[operator.label].append(operator.milliseconds)
        for name, time in self.added:
            times[f"{name.rpartition('.')[2]} (added by the executor)"].append(time)
        kinds = [(label, len(several), sum(several)) for label, several in times.items()]
        return sorted(kinds, key=lambda kind: -kind[2])


def profile_graph(files: ModelFiles, group_name: str, *, timeout: float = PROFILE_SECONDS) -> Graph:
    """Profile runs of the self-test's first input in a child process.

    The process has the threads of the group `group_name`, which must exist, and its option
    `onednn`. Raises ManifestError, BackendError if the self-test's input is too small, Paddle
    cannot profile the program, or the process ends or takes more than `timeout` seconds, and
    OSError if it cannot be started.
    """
    group = files.config.group(group_name)
    if files.manifest.reference.format == "onnx":
        raise BackendError("only a Paddle program has a graph to show; this one is ONNX")
    selftest = files.selftest()
    if reason := too_small(selftest, files.manifest.inputs):
        raise BackendError(reason)
    opening = {
        "directory": str(files.directory),
        "program": files.manifest.program,
        "params": files.manifest.params,
        "threads": group.threads,
        "onednn": group.options.get("onednn", True),
    }
    environment = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore"}
    try:
        with closing(Child(TARGET, opening, limits=Limits(environment=environment))) as child:
            reply = child.call({}, selftest.inputs, timeout=timeout)
    except ChildDied as error:
        raise BackendError(f"the process that profiled the program ended ({error})") from error
    profile = json.loads(reply.arrays["profile"].tobytes())
    about = {"model": f"{files.name}@{files.version}", "group": group_name}
    return TypeAdapter(Graph).validate_python(profile | about | {"threads": group.threads})


ROW, TOP = 18, 70
ARCS, LABEL, BAR = 220, 230, 330
COLOURS = ("#1f6feb", "#d9a441", "#2da44e", "#a371f7", "#cf5b4a", "#57a0a8", "#8c8f94")


def draw(graph: Graph) -> str:
    """Return an SVG drawing of the graph, with one row for each operator.

    Wide arcs are skip connections; hovering shows shapes and times.
    """
    operators = graph.operators
    kinds = [label for label, _, _ in graph.by_kind()]
    colour = {label: COLOURS[min(place, len(COLOURS) - 1)] for place, label in enumerate(kinds)}
    longest = max((operator.milliseconds for operator in operators), default=0.0) or 1.0
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
        _arc(source, place)
        for place, operator in enumerate(operators)
        for source in operator.sources
    ]
    parts += [
        _row(place, operator, colour[operator.label], operator.milliseconds / longest)
        for place, operator in enumerate(operators)
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


def _row(place: int, operator: Operator, colour: str, share: float) -> str:
    y, middle = TOP + ROW * place, _middle(place)
    time = f"{operator.milliseconds:.3g} ms"
    bar = ARCS + LABEL
    return (
        f"<g><title>{place + 1}. {escape(operator.name)} {operator.size}: {time}</title>"
        f'<circle cx="{ARCS - 4}" cy="{middle}" r="3" fill="{colour}"/>'
        f'<text x="{ARCS + 6}" y="{middle + 4}">{escape(operator.label)}'
        f'<tspan fill="#8c8f94"> {operator.size}</tspan></text>'
        f'<rect x="{bar}" y="{y + 3}" width="{max(1.0, BAR * share):.1f}" height="{ROW - 6}" '
        f'fill="{colour}"/>'
        f'<text x="{bar + BAR * share + 6:.1f}" y="{middle + 4}" fill="#57606a">{time}</text></g>'
    )
