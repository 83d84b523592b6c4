"""A composed model `chain` of the models `one` and `two`, and its pipeline."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.ports import PredictorSpec, RequestContext, ServedModelInfo
from paddlepool.engine.process.suspension import Suspension
from tests.engine.fakes import FakeFactory, FakePredictor, eventually, row
from tests.model_files import write_config, write_manifest

COMPOSED = """
pipeline = "chain"
[parts]
first = "one"
second = "two"
"""


class Between:
    """What requests do between their parts: they wait while it is closed, and make more jobs."""

    def __init__(self) -> None:
        self.closed = False
        self.factor = 1
        """Jobs of the second part for each of the first."""
        self.widths = 1
        """Rows have 1 to so many values, in turn, all with the same number."""
        self._count = 0
        self._event = asyncio.Event()

    async def wait(self) -> None:
        self._count += 1
        await self._event.wait()

    async def waiting(self, count: int) -> None:
        await eventually(lambda: self._count == count)

    def open(self) -> None:
        self.closed = False
        self._event.set()


Answer = tuple[list[float], tuple[int, ...]]
"""The numbers, and the versions of the parts."""


def write_composed(root: Path) -> None:
    """Write the composed model `chain`, whose sample is the number 1."""
    directory = root / "chain" / "1"
    directory.mkdir(parents=True)
    write_config(root / "chain", COMPOSED)
    (directory / "sample.txt").write_text("1", "utf-8")
    (directory / "answer.json").write_text("4.0", "utf-8")
    rewrite_manifest(directory)


def rewrite_manifest(directory: Path) -> None:
    write_manifest(directory)
    manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
    kept = {name: manifest[name] for name in ("files", "weights", "built_with")}
    manifest = {"format": 3, "sample": "sample.txt", "answer": "answer.json"} | kept
    (directory / "manifest.json").write_text(json.dumps(manifest), "utf-8")


class Chain:
    """Doubles each number with the first part, and the results with the second."""

    def __init__(self, info: ServedModelInfo, between: Between) -> None:
        self.versions = tuple(part.version for part in info.parts.values())
        self.between = between
        self.closed = False

    async def run(self, payload: Sequence[float], context: RequestContext) -> Answer:
        assert not self.closed
        values = list(payload)
        for part in ("first", "second"):
            widths = [1 + index % self.between.widths for index in range(len(values))]
            rows = [row(*[value] * width) for value, width in zip(values, widths, strict=True)]
            outputs = await context.infer(rows, part=part)
            values = [float(output["y"].flat[0]) for output in outputs]
            if part == "first":
                values *= self.between.factor
                if self.between.closed:
                    await self.between.wait()
        return values, self.versions

    def payload_of(self, sample: bytes) -> list[float]:
        return [float(sample)]

    def answer_of(self, value: Answer) -> float:
        return value[0][0]

    def check(self, answer: float, expected: float) -> None:
        if answer != expected:
            raise BackendError(f"{answer} instead of {expected}")

    def close(self) -> None:
        self.closed = True


class FactoryByModel:
    """Opens the predictors of each model with a FakeFactory of its own."""

    def __init__(self) -> None:
        self.of: defaultdict[str, FakeFactory] = defaultdict(FakeFactory)

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspension | None = None
    ) -> FakePredictor:
        return self.of[spec.directory.parent.name](spec, suspension=suspension)
