"""ONNX Runtime and OpenVINO on the CPU, for ONNX programs and converted Paddle programs.

Both need the extra `engines`. OpenVINO can read Paddle programs, but only in the legacy format.
"""

import contextlib
import io
import json
import mmap
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from paddlepool.contracts.errors import BackendError, BackendUnavailable
from paddlepool.contracts.resources import processor
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.handler import (
    Handler,
    check_bfloat16,
    checked_options,
    onnx_bytes,
    serve,
)
from paddlepool.engine.backends.openvino_heads import move_before_enlarging
from paddlepool.engine.backends.openvino_integers import Limits, check_integers, limits
from paddlepool.engine.backends.openvino_rules import (
    INT32,
    lost_axes,
    saturating,
    tables,
    unsuitable,
)
from paddlepool.engine.backends.paddle_operators import check_ids, operators_of, unchecked_tables

CACHED = "512"
"""Number of prepared operators of each kind that OpenVINO keeps for earlier shapes."""
OPENVINO_OPTIONS: Mapping[str, Any] = {"bfloat16": False}
"""Options of the backend openvino, with their defaults."""
MISSING = "the backend {0} needs the package {0} (extra engines)"


def open_onnxruntime(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Load the model and return its handler; called once in the child.

    Raises ConfigError for any option, BackendUnavailable if the package is missing, and the errors
    of onnx_bytes(), of operators_of() and of the framework.
    """
    checked_options("onnxruntime", opening["options"], {})
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailable(MISSING.format("onnxruntime")) from error
    onnxruntime.set_default_logger_severity(4)  # no log lines: errors are raised as well
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = opening["threads"]
    options.inter_op_num_threads = 1
    # By default, a product with int8 weights rounds its activations to int8, too.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    # The fused kernel is much slower than the two kernels it replaces (ONNX Runtime 1.31).
    session = onnxruntime.InferenceSession(
        onnx_bytes(opening),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],
    )
    names = [port.name for port in session.get_inputs()]
    # In ONNX a negative id counts from the end of its table; Paddle has none there.
    paddle = opening.get("format") != "onnx"
    program = Path(opening["directory"], opening["program"])
    rows = unchecked_tables(operators_of(program), every=True) if paddle else {}

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        check_ids(inputs, rows)
        # The tensors are views of shared memory that the next request overwrites; the session
        # reads them only during the call.
        return list(session.run(None, {name: inputs[name] for name in names}))

    return {}, serve(run)


def imported_openvino() -> Any:
    """Import `openvino` without its telemetry. Raises ImportError without the package.

    OpenVINO and NNCF report their use to their makers and store an identifier in the home
    directory. If the package that reports cannot be imported, both use stubs instead.
    """
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))
    import openvino

    return openvino


def openvino_runtime() -> Any:
    """Import `openvino` as imported_openvino() does, and without its converters."""
    sys.modules.setdefault("openvino.tools.ovc", cast(ModuleType, None))
    return imported_openvino()


def _model(core: Any, opening: Mapping[str, Any]) -> tuple[Any, Limits]:
    """Read the program; raise BackendError if OpenVINO would compute it wrongly.

    Returns it with the limits of its inputs within which it is computed rightly.
    """
    program = onnx_bytes(opening)
    model = core.read_model(program)
    rounded, largest = limits(model)
    reasons = unsuitable(model) + rounded + lost_axes(program)
    # A derived program (with a name) is known to be right: docs/decisions/0054.
    narrow = processor().remark is not None
    if opening.get("program_name") is None and narrow and saturating(program, model):
        reasons.append(
            "int8 weights of eight bits on a processor without VNNI, whose sums saturate"
        )
    if reasons:
        raise BackendError(f"OpenVINO would give wrong numbers: {'; '.join(reasons)}")
    with contextlib.suppress(Exception):  # the program is computed as it is
        move_before_enlarging(model)
    return model, largest


Import = Callable[[], Any]
"""Imports a compiled program as it was before any run."""


class _Facts(NamedTuple):
    """Names of the inputs in the order of the program, and what tables() and limits() return."""

    names: list[str]
    rows: Mapping[str, int]
    largest: Limits


def _compiled(
    core: Any, settings: Mapping[str, object], opening: Mapping[str, Any]
) -> tuple[Any, Import, _Facts]:
    """Return the compiled program, its import, and the facts about its inputs.

    Imports the file `compiled` of `opening`, without reading the program again. Without such a
    file, compiles the program and writes the file `export`. The self-test then judges the imported
    program, which later starts import. Raises the errors of _model().
    """
    if stored := opening.get("compiled"):
        content = _mapped(Path(stored))
        content.readline()  # the digest
        return _imported(core, settings, content)
    model, largest = _model(core, opening)
    # Names of the model before it is compiled: compiling may rename an input after an operator.
    facts = _Facts([port.get_any_name() for port in model.inputs], tables(model), largest)
    compiled = core.compile_model(model, "CPU", settings)
    if not (export := opening.get("export")):
        program: bytes | None = None

        def again() -> Any:
            nonlocal compiled, program
            if program is None:  # OpenVINO 2026.4 cannot import what an imported program exports
                program, compiled = compiled.export_model().getvalue(), None
            return core.import_model(io.BytesIO(program), "CPU", settings)

        return compiled, again, facts
    line = json.dumps(facts).encode() + b"\n"
    exported = io.BytesIO(line + compiled.export_model().getvalue())
    try:
        Path(export).write_bytes(exported.getbuffer())
    except OSError:  # no room: the next start compiles again
        return _imported(core, settings, exported)
    return _imported(core, settings, _mapped(Path(export)))


def _mapped(file: Path) -> mmap.mmap:
    """Map a file, which can then be read again also when it has been deleted."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _imported(
    core: Any, settings: Mapping[str, object], content: mmap.mmap | io.BytesIO
) -> tuple[Any, Import, _Facts]:
    facts = _Facts(*json.loads(content.readline()))
    begin = content.tell()

    def again() -> Any:
        content.seek(begin)
        compiled = core.import_model(io.BytesIO(content.read()), "CPU", settings)
        if isinstance(content, mmap.mmap):
            content.madvise(mmap.MADV_DONTNEED)  # its pages would count as memory of the process
        return compiled

    return again(), again, facts


class _Program:
    """A compiled program, which is opened again after a run that failed.

    When an operator has refused tensors, OpenVINO 2026.4 keeps some of their shapes. Later runs on
    the shapes of the run before then give wrong numbers or fail, also in another infer request.
    """

    def __init__(self, compiled: Any, again: Import) -> None:
        """`again` imports the program `compiled` anew."""
        self._again = again
        self._request = compiled.create_infer_request()
        self._outputs = range(len(compiled.outputs))
        self._failed = False

    def run(self, inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        """Return the outputs, which are valid until the next run. Raises the error of OpenVINO."""
        if self._failed:
            self._request = None  # frees the memory of the old program first
            self._request = self._again().create_infer_request()
        self._failed = True
        # In a stream of one thread, infer() raises nothing if an operator refuses the tensors, and
        # leaves the outputs of the run before (OpenVINO 2026.4). wait() raises in every case.
        # Nobody changes the tensors, which are in shared memory, before the reply.
        self._request.start_async(inputs, share_inputs=True)
        self._request.wait()
        self._failed = False
        return [self._request.get_output_tensor(index).data for index in self._outputs]


def open_openvino(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Compile the model, or import it compiled, and return its handler; called once in the child.

    Raises ConfigError for options other than OPENVINO_OPTIONS, BackendUnavailable if the package is
    missing or bfloat16 cannot be used, BackendError if OpenVINO would compute the model wrongly,
    and the errors of onnx_bytes() and of the framework.
    """
    options = checked_options("openvino", opening["options"], OPENVINO_OPTIONS)
    try:
        openvino = openvino_runtime()
    except ImportError as error:
        raise BackendUnavailable(MISSING.format("openvino")) from error
    core = openvino.Core()
    if options["bfloat16"]:
        capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        check_bfloat16(supported="BF16" in capabilities)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": str(opening["threads"]),
        # Without a stream, the calling thread runs all operators. A stream of one thread would take
        # 0.1 ms more for each run: docs/decisions/0088.
        "NUM_STREAMS": "0" if opening["threads"] == 1 else "1",
        # By default, the threads of every process are pinned to the first cores.
        "ENABLE_CPU_PINNING": False,
        # By default OpenVINO computes in bfloat16 if the processor can, which changes outputs.
        "INFERENCE_PRECISION_HINT": "bf16" if options["bfloat16"] else "f32",
        # By default, products with int8 weights round their activations to int8, too.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        # By default, memory grows with each new shape, by 0.4 MB.
        "CPU_RUNTIME_CACHE_CAPACITY": CACHED,
    }
    compiled, again, facts = _compiled(core, settings, opening)
    program = _Program(compiled, again)
    wide = [spec["name"] for spec in opening["inputs"] if spec["dtype"] in ("int64", "uint64")]

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        for name in wide:
            values = inputs[name]
            if values.size and (values.max() > INT32.max or values.min() < INT32.min):
                raise BackendError(f"input {name!r} has integers beyond the 32 bits of OpenVINO")
        check_ids(inputs, facts.rows, from_end=opening.get("format") == "onnx")
        check_integers(inputs, facts.largest)
        return program.run({name: inputs[name] for name in facts.names})

    return {}, serve(run)
