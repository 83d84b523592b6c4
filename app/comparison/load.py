"""Synthetic load on a served model through the server's own engine, read from its own metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from prometheus_client.samples import Sample as Point

from app.comparison.tasks import Sample
from app.comparison.tuning import Candidate, Outcome
from app.contracts.ports import Agreement, PredictorFactory
from app.engine.pool.context import EngineContext
from app.engine.registry.model import ServedModel
from app.observability.metrics import Metrics
from app.repository.config import DynamicBatching, Warmup
from app.repository.layout import ModelFiles

ROUTE = "/tune"
REQUEST_SECONDS = 120.0


def candidate_files(
    files: ModelFiles, candidate: Candidate, samples: Sequence[Sample]
) -> ModelFiles:
    """The version as it would be served under `candidate`: its default group alone."""
    config = files.config
    group = config.group(config.default_group).model_copy(
        update={"count": candidate.count, "threads": candidate.threads, "start": "always"}
    )
    parameters = dict(config.parameters)
    if candidate.buckets:
        parameters["buckets"] = list(candidate.buckets)
    shapes = {tuple((name, a.shape) for name, a in inputs.items()) for _, inputs in samples}
    return replace(
        files,
        config=config.model_copy(
            update={
                "instance_group": (group,),
                "dynamic_batching": DynamicBatching(
                    max_batch_size=candidate.batch, max_queue_size=64
                ),
                "warmup": tuple(Warmup(shapes=dict(each)) for each in sorted(shapes)),
                "parameters": parameters,
            }
        ),
    )


@dataclass(slots=True)
class CandidateUnderLoad:
    """One candidate being served and loaded. Close it."""

    candidate: Candidate
    clients: int
    samples: Sequence[Sample]
    model: ServedModel
    metrics: Metrics
    seconds: float = 0.0
    _turn: int = field(default=0)

    def run(self, seconds: float) -> None:
        """Keep every client busy for `seconds`; requests that have begun are finished."""
        ends = time.perf_counter() + seconds
        lock = threading.Lock()

        def client(_: int) -> None:
            while time.perf_counter() < ends:
                with lock:
                    self._turn += 1
                    inputs = self.samples[self._turn % len(self.samples)][1]
                began = time.monotonic()
                self.model.submit(inputs, deadline=began + REQUEST_SECONDS).result()
                self.metrics.request_done(
                    route=ROUTE, method="POST", status=200, seconds=time.monotonic() - began
                )

        began = time.perf_counter()
        with ThreadPoolExecutor(self.clients) as clients:
            list(clients.map(client, range(self.clients)))
        self.seconds += time.perf_counter() - began

    def outcome(self) -> Outcome:
        points = list(_request_points(self.metrics))
        count = next(point.value for point in points if point.name.endswith("_count"))
        return Outcome(
            candidate=self.candidate,
            clients=self.clients,
            per_second=count / self.seconds,
            p95_seconds=histogram_quantile(points, 0.95),
            resident_bytes=sum(group.resident_bytes for group in self.model.groups()),
        )

    def close(self) -> None:
        self.model.close()


def open_candidate(
    files: ModelFiles,
    candidate: Candidate,
    samples: Sequence[Sample],
    *,
    cores: int,
    open_predictor: PredictorFactory,
    agreement: Agreement | None = None,
) -> CandidateUnderLoad:
    """Blocks until every predictor has passed its self-test and is warm. Raises BackendError."""
    metrics = Metrics(build={})
    metrics.expect_model(files.name, [files.config.default_group])
    metrics.expect_route(ROUTE, ["POST"], [200])
    model = ServedModel(
        candidate_files(files, candidate, samples),
        context=EngineContext(
            open_predictor=open_predictor,
            observer=metrics,
            clock=time.monotonic,
            max_resident_bytes=1 << 40,
            agreement_of=lambda _info: agreement,
        ),
    )
    try:
        model.start()
    except BaseException:
        model.close()
        raise
    clients = max(cores, candidate.count * candidate.batch)
    return CandidateUnderLoad(
        candidate=candidate, clients=clients, samples=samples, model=model, metrics=metrics
    )


def _request_points(metrics: Metrics) -> list[Point]:
    return [
        point
        for family in metrics.registry.collect()
        if family.name == "paddlepool_request_duration_seconds"
        for point in family.samples
        if point.labels.get("route") == ROUTE
    ]


def histogram_quantile(points: Sequence[Point], share: float) -> float:
    """As Prometheus reads it: linear inside the bucket that holds the quantile."""
    bounds: list[tuple[float, float]] = sorted(
        (float(_labels(point)["le"]), point.value) for point in points if "le" in _labels(point)
    )
    wanted = share * bounds[-1][1]
    low, below = 0.0, 0.0
    for high, until in bounds:
        if until >= wanted:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / max(until - below, 1e-9)
        low, below = high, until
    raise ValueError("this is a bug: a histogram without its last bucket")


def _labels(point: Point) -> Mapping[str, str]:
    return point.labels
