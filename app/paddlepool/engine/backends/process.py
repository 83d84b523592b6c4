"""A predictor of any framework in its own child process: a `ports.Predictor` for the engine."""

import contextlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paddlepool.contracts import errors
from paddlepool.contracts.ports import Predictor, PredictorSpec, RunResult
from paddlepool.contracts.resources import NO_REPORTS
from paddlepool.contracts.tensors import Tensors, TensorSpec, all_finite
from paddlepool.engine.backends import BACKENDS
from paddlepool.engine.backends.compiled import EXPORT, CompiledPrograms
from paddlepool.engine.backends.converted import CONVERSION, ConvertedPrograms, is_converted
from paddlepool.engine.process.child import Child, ChildDied, ChildTimeout, ChildWorker
from paddlepool.engine.process.confinement import MEASURES, Confinement
from paddlepool.engine.process.environment import Limits, malloc_settings
from paddlepool.engine.process.start import Spares
from paddlepool.engine.process.suspension import Suspension

log = logging.getLogger(__name__)

NICE = 10
"""Niceness of predictors: liveness probes must be answered while predictors use every core."""

ENVIRONMENT = {
    "GLOG_minloglevel": "2",
    # Paddle's package warns about a C++ build tool for custom operators, which is not needed.
    "PYTHONWARNINGS": "ignore:No ccache found",
}
"""Environment of every predictor process."""

# Paddle allocates and frees every activation in every run (26-52 MB each for U²-Netp). By default
# glibc maps and unmaps them, which costs 43,000 page faults: a quarter of the run.
TUNED_ALLOCATOR = malloc_settings(
    "hugetlb=1", "mmap_threshold=4294967296", "trim_threshold=4294967296", "top_pad=67108864"
)
OPENVINO = "paddlepool.engine.backends.onnx:openvino_runtime"
"""What a process that will run OpenVINO can prepare before it has a model."""
CURRENT_PROGRAMS = {"FLAGS_enable_pir_api": "1"}
"""Without this flag, `paddle.jit.load` accepts programs of Paddle 2 and unpickles a file."""

BACKEND_ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "paddle_inference": TUNED_ALLOCATOR,
    # Without the first flag, Paddle's executor runs operators in a thread pool. It then uses more
    # threads than its budget; U²-Netp becomes a third slower and takes a third more memory.
    "paddle_jit": TUNED_ALLOCATOR | {"FLAGS_new_executor_serial_run": "1"} | CURRENT_PROGRAMS,
    "paddle_dygraph": CURRENT_PROGRAMS,
    "onnxruntime": {NO_REPORTS: "1"},
}
"""Environment by backend. Only Paddle's static programs are tuned. The dynamic graph and the other
frameworks are compared as their users run them, without tuning: docs/decisions/0006."""


class ProcessPredictor(ChildWorker):
    """A predictor in a child process; implements `paddlepool.contracts.ports.Predictor`."""

    def __init__(self, child: Child, spec: PredictorSpec) -> None:
        super().__init__(child)
        self.expect, self.end_suspension = child.expect, child.end_suspension
        self._outputs = {str(number): output.name for number, output in enumerate(spec.outputs)}
        self._batched = spec.batched
        self._directory = spec.directory
        self._rows: int | None = None

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        self.put(inputs)
        self._send({})
        return self.receive(timeout=timeout).outputs

    def put(self, inputs: Tensors) -> None:
        self._rows = len(next(iter(inputs.values()))) if self._batched else None
        self._child.put(inputs)

    def send(self, _: Tensors, /) -> None:
        self._send({"rows": self._rows})

    def _send(self, meta: Mapping[str, Any]) -> None:
        try:
            self._child.send(meta)
        except ChildDied as error:
            raise self._run_error(error) from error

    def receive(self, *, timeout: float) -> RunResult:
        try:
            reply = self._child.receive(timeout=timeout)
        except (ChildDied, errors.BackendError) as error:
            raise self._run_error(error) from error
        return RunResult(self._named(reply.arrays), reply.seconds)

    def poll_reply(self) -> int | None:
        try:
            return self._child.poll_reply()
        except (ChildDied, errors.BackendError) as error:
            raise self._run_error(error) from error

    def fetch(self) -> RunResult:
        reply = self._child.fetch()
        return RunResult(self._named(reply.arrays), reply.seconds, finite=all_finite(reply.arrays))

    def _named(self, arrays: Tensors) -> Tensors:
        return {name: arrays[n] for n, name in self._outputs.items() if n in arrays}

    def _run_error(self, error: ChildDied | errors.BackendError) -> errors.PaddlepoolError:
        """Return the error that a failed run raises; record why the process died, if it did."""
        if isinstance(error, errors.BackendError):
            text = _without(self._directory, error.library_text or error.message)
            return errors.RunRefused(
                f"the framework cannot run the model: {text}", library_text=text
            )
        self._failure = error.reason
        if isinstance(error, ChildTimeout):
            return errors.DeadlineExceeded("the predictor gave no result in time and was killed")
        return errors.WorkerCrashed(f"the predictor process ended during the run ({error.reason})")


@dataclass(eq=False)
class ProcessBackend:
    """Opens predictors in child processes: a `PredictorFactory`.

    `backends` maps each backend to its target, and `environments` to variables of its processes.
    `held` lists the `paddlepool.engine.process.confinement.MEASURES` in force for the predictor
    that was opened last; None before the first. A predictor opened without the argument
    `suspension` uses that of this object, if there is one: it runs only on idle processors, and is
    stopped while the suspension is held. Processes of `spares` are used first.
    """

    backends: Mapping[str, str] = field(default_factory=lambda: BACKENDS)
    nice: int = NICE
    environments: Mapping[str, Mapping[str, str]] = field(
        default_factory=lambda: BACKEND_ENVIRONMENT
    )
    suspension: Suspension | None = None
    compiled: CompiledPrograms = field(default_factory=CompiledPrograms)
    converted: ConvertedPrograms = field(default_factory=ConvertedPrograms)
    spares: Spares | None = None
    held: tuple[str, ...] | None = field(default=None, init=False)

    def __call__(self, spec: PredictorSpec, *, suspension: Suspension | None = None) -> Predictor:
        """Open a predictor, with its compiled program if that is stored.

        Raises ConfigError for an unknown backend or a wrong option, BackendError for a model that
        cannot be loaded or a program that is missing or not for this backend, WorkerCrashed if the
        process died, and OSError if the system lacked resources for it.
        """
        target = self.backends.get(spec.backend)
        if target is None:
            raise errors.ConfigError(
                f"backend {spec.backend!r} is unknown, there are {', '.join(self.backends)}"
            )
        _check_program(spec)
        stored = self.compiled.path(spec)
        if stored is None or not self.compiled.intact(stored):
            return self._opened(spec, target, suspension, export_to=stored)
        try:
            return self._opened(spec, target, suspension, compiled=stored)
        except (errors.BackendError, errors.WorkerCrashed) as error:
            log.warning("a compiled program is removed, as it cannot be opened: %s", error)
            self.compiled.remove(stored)
            return self._opened(spec, target, suspension, export_to=stored)

    def _opened(
        self,
        spec: PredictorSpec,
        target: str,
        suspension: Suspension | None,
        *,
        compiled: Path | None = None,
        export_to: Path | None = None,
    ) -> Predictor:
        """Open a predictor with a compiled program, or compile one and store it at `export_to`."""
        opening = asdict(spec) | {"directory": str(spec.directory)}
        opening["compiled"] = None if compiled is None else str(compiled)
        environment = {**ENVIRONMENT, **self.environments.get(spec.backend, {})}
        converted = self.converted.path(spec)
        reading = [spec.directory, *([] if compiled is None else [compiled])]
        if converted is not None and converted.exists():
            opening["converted"] = str(converted)
            reading.append(converted)
        converts = is_converted(spec) and "converted" not in opening
        try:
            with contextlib.ExitStack() as opened:
                writing: list[Path] = []
                if converts or export_to is not None:
                    directory = tempfile.TemporaryDirectory(prefix="paddlepool-")
                    writing.append(Path(opened.enter_context(directory)))
                    opening["export"] = None if export_to is None else str(writing[0] / EXPORT)
                    if converted is not None:
                        opening["conversion"] = str(writing[0] / CONVERSION)
                    environment["TMPDIR"] = str(writing[0])
                limits = Limits(
                    nice=self.nice,
                    environment=environment,
                    suspension=self.suspension if suspension is None else suspension,
                    idle=suspension is None and self.suspension is not None,
                    confinement=Confinement.PREDICTOR,
                    reading=reading,
                    writing=writing,
                    # Converting a program needs calls that confinement forbids, and opening a GPU
                    # may need some too.
                    starts_programs=converts or spec.options.get("device") == "gpu",
                )
                check = partial(check_outputs, spec.outputs)
                child = Child(target, opening, limits=limits, check=check, spares=self.spares)
                if converts and converted is not None:
                    self.converted.keep(converted, writing[0] / CONVERSION)
                if export_to is not None:
                    self.compiled.store(export_to, writing[0] / EXPORT)
        except errors.BackendError as error:
            if not error.library_text:
                raise
            raise errors.BackendError(_without(spec.directory, error.library_text)) from error
        except ChildTimeout as error:
            raise errors.BackendError(
                f"the {spec.backend} process did not load the model"
            ) from error
        except ChildDied as error:
            raise errors.WorkerCrashed(
                f"the {spec.backend} process ended while it loaded the model ({error.reason})"
            ) from error
        if self.held is None and (missing := [m for m in MEASURES if m not in child.held]):
            log.warning("predictor processes are not confined by %s", " nor by ".join(missing))
        self.held = child.held
        return ProcessPredictor(child, spec)


def check_outputs(
    specs: Sequence[TensorSpec], call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors
) -> None:
    """Check a run's outputs against the specification and the number of rows.

    Implements `paddlepool.engine.process.replies.Check`; `call` and `meta` are the values of the
    request and the reply. `call["rows"]` is the number of rows; None allows any. Requests without
    it, which run() sends for self-tests and warm-ups, are not checked. Raises ValueError for
    outputs that no run of the model gives. Raises ModelOutputInvalid for another number of rows, or
    a shape that `specs` exclude: these describe only what was seen when the version was sealed.
    """
    if "rows" not in call:
        return
    if meta or len(arrays) != len(specs):
        raise ValueError(f"{len(arrays)} outputs, of {len(specs)}, and {len(meta)} values beside")
    rows = call["rows"]
    for number, spec in enumerate(specs):
        array = arrays.get(str(number))
        if array is None or array.dtype != spec.dtype:
            raise ValueError(f"output {spec.name!r} is {spec.dtype}")
        if not spec.admits_shape(array.shape) or rows not in (None, *array.shape[:1]):
            expected = [rows or size if axis == 0 else size for axis, size in enumerate(spec.shape)]
            raise errors.ModelOutputInvalid(
                f"output {spec.name!r} has shape {list(array.shape)}, its manifest expects "
                f"{expected} (-1 is free)"
            )


def _without(directory: Path, text: str) -> str:
    return text.replace(f"{directory}/", "").replace(f"{directory}", "")


def _check_program(spec: PredictorSpec) -> None:
    """Raise BackendError if the backend cannot run the program, before a process is started."""
    if spec.refusal:
        raise errors.BackendError(spec.refusal)
    if spec.format == "onnx" and spec.backend.startswith("paddle_"):
        program = "the model's program" if spec.program_name is None else repr(spec.program_name)
        raise errors.BackendError(
            f"backend {spec.backend} runs Paddle programs and {program} is ONNX: "
            "onnxruntime and openvino run it"
        )
