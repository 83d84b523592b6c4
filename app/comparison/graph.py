"""A static graph as Paddle runs it: operators, what was fused into them, and the time of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.contracts.errors import BackendError
from app.process.child import Child, Limits
from app.repository.layout import ModelFiles

TARGET = "app.backends.paddle_profile:open_profile"
PROFILE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator; `sources` are the places of those whose results it takes."""

    name: str
    fused: tuple[str, ...]
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    milliseconds: float | None

    @property
    def label(self) -> str:
        return " + ".join((self.name.rpartition(".")[2], *self.fused))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """`before` operators were exported; `added` are names and times of what the executor adds."""

    model: str
    group: str
    threads: int
    before: int
    operators: tuple[Operator, ...]
    added: tuple[tuple[str, float], ...]

    @property
    def milliseconds(self) -> float:
        own = sum(each.milliseconds or 0.0 for each in self.operators)
        return own + sum(time for _, time in self.added)

    def by_kind(self) -> list[tuple[str, int, float]]:
        """Label, count and milliseconds, the costliest kind first."""
        counts: defaultdict[str, int] = defaultdict(int)
        times: defaultdict[str, float] = defaultdict(float)
        for each in self.operators:
            counts[each.label] += 1
            times[each.label] += each.milliseconds or 0.0
        for name, time in self.added:
            label = f"{name.rpartition('.')[2]} (added by the executor)"
            counts[label] += 1
            times[label] += time
        return sorted(((name, counts[name], times[name]) for name in counts), key=lambda k: -k[2])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def profile_graph(files: ModelFiles, group_name: str) -> Graph:
    """Run the self-test's input under the profiler, in a process that ends. Raises BackendError."""
    group = files.config.group(group_name)
    if files.manifest.reference.format == "onnx":
        raise BackendError("only a Paddle program has a graph to show; this one is ONNX")
    selftest = files.selftest()
    opening = {
        "directory": str(files.directory),
        "program": files.manifest.program,
        "params": files.manifest.params,
        "threads": group.threads,
        "onednn": group.options.get("onednn", True),
    }
    environment = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore"}
    child = Child(TARGET, opening, limits=Limits(environment=environment))
    try:
        reply = child.call({}, selftest.inputs, timeout=PROFILE_SECONDS)
    finally:
        child.close()
    found = json.loads(reply.arrays["profile"].tobytes())
    return Graph(
        model=f"{files.name}@{files.version}",
        group=group_name,
        threads=group.threads,
        before=found["before"],
        operators=_linked(found["operators"]),
        added=tuple((each["name"], each["milliseconds"]) for each in found["added"]),
    )


def _linked(operators: list[Mapping[str, Any]]) -> tuple[Operator, ...]:
    """Values by number become links between places in the list."""
    makers: dict[int, int] = {}
    linked = []
    for place, each in enumerate(operators):
        linked.append(
            Operator(
                name=each["name"],
                fused=tuple(each["fused"]),
                sources=tuple(sorted({makers[v] for v in each["inputs"] if v in makers})),
                shape=tuple(each["shape"]),
                milliseconds=each["milliseconds"],
            )
        )
        for value in each["outputs"]:
            makers[value] = place
    return tuple(linked)
