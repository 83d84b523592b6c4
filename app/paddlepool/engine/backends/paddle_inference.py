"""Paddle Inference, with or without oneDNN: the target of a predictor process.

Importing Paddle's Python package costs a second and 100 MB in every process. A predictor does not
need it: only the extension module below it is loaded (`_load_core`).
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.contracts.errors import BackendError, BackendUnavailable, ConfigError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.handler import Handler, check_bfloat16, checked_options, serve
from paddlepool.engine.backends.onednn_rules import LEFT_OUT, PLACEMENT, misplaced, reversed_layout
from paddlepool.engine.backends.paddle_operators import (
    LEGACY,
    Operator,
    check_ids,
    operators_of,
    unchecked_tables,
)

OPTIONS: dict[str, Any] = {
    "onednn": True,
    "onednn_rows": 1,
    "cache_capacity": 1,
    "bfloat16": False,
    "device": "cpu",
    "float16": False,
}
"""The options of the backend paddle_inference, with their defaults.

`onednn` is on in Paddle by default, so false must call disable_mkldnn(). Inputs with fewer rows
than `onednn_rows` run on Paddle's own kernels, in a second predictor with its own weights: each
operator of oneDNN costs 10 to 20 µs more, which matters in a small run (docs/decisions/0030).
`cache_capacity` is the number of input shapes for which oneDNN keeps its prepared primitives. Each
shape has its own packed weights. With 0, all shapes share one set of weights, and up to SHAPES
shapes are kept. `device` is "cpu" or "gpu". `bfloat16` needs oneDNN and a processor that has it;
`float16` needs a GPU."""

SHAPES = 128
"""Maximum shapes that a predictor with `cache_capacity = 0` runs before it is created again: oneDNN
then never drops a shape, and each one takes 1 MB. A model with up to eight rows and seven length
buckets has 56 shapes."""

GATHERED_BYTES = 4 * 2**20
"""Bytes of activations that Paddle collects before it frees them. By default it wakes a thread for
each one, which slows down small models."""

GPU_POOL_MEGABYTES = 256
"""Initial memory pool of a GPU predictor; it grows if needed."""


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Load the model and return its handler; called once in the child.

    With `cache_capacity = 0`, the handler loads the model again after SHAPES shapes, and ends the
    process if the files have changed. Raises ConfigError, BackendError, OSError and the framework's
    errors.
    """
    options = checked_options("paddle_inference", opening["options"], OPTIONS)
    program = Path(opening["directory"], opening["program"])
    operators = operators_of(program)
    tables = unchecked_tables(operators)
    core = _load_core()
    core.globals()["FLAGS_eager_delete_tensor_gb"] = GATHERED_BYTES / 2**30
    predictor = _create(core, opening, options, operators)
    names, outputs = predictor.get_input_names(), predictor.get_output_names()
    expected = [spec["name"] for spec in opening["inputs"]]
    if sorted(names) != sorted(expected) or len(outputs) != len(opening["outputs"]):
        raise BackendError(
            f"the program takes {sorted(names)} and gives {len(outputs)} outputs; "
            f"its manifest says {sorted(expected)} and {len(opening['outputs'])}"
        )

    shared = options["cache_capacity"] == 0
    verified = fingerprint(opening) if shared else []  # the parent verifies the files after this
    shapes: set[tuple[tuple[int, ...], ...]] = set()
    few = options["onednn_rows"]
    if few > 1 and not (options["onednn"] and options["device"] == "cpu"):
        raise ConfigError('onednn_rows needs onednn = true and device = "cpu"')
    plain = _create(core, opening, options | {"onednn": False}, ()) if few > 1 else None

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        nonlocal predictor
        check_ids(inputs, tables)
        if plain is not None and len(inputs[names[0]]) < few:
            return _run(plain, names, outputs, inputs)
        if shared:
            shapes.add(tuple(inputs[name].shape for name in names))
            if len(shapes) > SHAPES:
                shapes.clear()
                predictor = None  # frees its memory before its successor needs as much
                predictor = _create(core, opening, options, operators_of(program))
                if fingerprint(opening) != verified:  # the parent then replaces this process
                    sys.exit("the model's files have changed since they were verified")
        return _run(predictor, names, outputs, inputs)

    return {}, serve(run)


def fingerprint(opening: Mapping[str, Any]) -> list[str]:
    """Return the sha256 of the program and of its parameters, if any. Raises OSError."""
    names = filter(None, (opening["program"], opening["params"]))
    contents = (Path(opening["directory"], name).read_bytes() for name in names)
    return [hashlib.sha256(content).hexdigest() for content in contents]


def _run(
    predictor: Any, names: Sequence[str], outputs: Sequence[str], inputs: Tensors
) -> list[np.ndarray[Any, Any]]:
    for name in names:
        predictor.get_input_handle(name)._copy_from_cpu_bind(inputs[name])
    predictor.run()
    return [predictor.get_output_handle(name).copy_to_cpu() for name in outputs]


def _create(core: Any, *arguments: Any) -> Any:
    """Create a predictor; Paddle needs a separate configuration for each one."""
    return core.create_predictor(configured(core, *arguments))


def configured(
    core: Any,
    opening: Mapping[str, Any],
    options: Mapping[str, Any],
    operators: Sequence[Operator],
) -> Any:
    """Return the configuration of a predictor; `operators` are those of its program.

    Raises ConfigError for an unknown device and for options that exclude each other. Raises
    BackendUnavailable if this machine lacks what the options need, or if `bfloat16` is set and
    oneDNN would compute the model wrongly. Paddle itself would accept such options, and run 850
    times slower or crash.
    """
    directory, params = Path(opening["directory"]), opening["params"]
    config = core.AnalysisConfig(
        str(directory / opening["program"]), str(directory / params) if params else ""
    )
    if options["device"] not in ("cpu", "gpu"):
        raise ConfigError(
            f'device must be "cpu" or "gpu", received {str(options["device"])[:40]!r}'
        )
    gpu, legacy = options["device"] == "gpu", Path(opening["program"]).suffix == LEGACY
    if options["bfloat16"] and (gpu or not options["onednn"]):
        raise ConfigError('bfloat16 = true needs onednn = true and device = "cpu"')
    if options["float16"] and not gpu:
        raise ConfigError('float16 = true needs device = "gpu"')
    if gpu:
        if not core.is_compiled_with_cuda():
            raise BackendUnavailable('device = "gpu": this build of Paddle has no CUDA')
        if core.get_cuda_device_count() == 0:
            raise BackendUnavailable('device = "gpu": there is no GPU')
        precision = core.AnalysisConfig.Precision
        config.enable_use_gpu(
            GPU_POOL_MEGABYTES, 0, precision.Half if options["float16"] else precision.Float32
        )
        config.disable_mkldnn()
    else:
        config.disable_gpu()
        _choose_onednn(core, config, options, operators, legacy=legacy)
    config.set_cpu_math_library_num_threads(opening["threads"])
    if not legacy:  # a legacy program has its own IR, Paddle's default for it
        config.enable_new_ir(True)
        config.enable_new_executor()  # needed for the memory optimisation of a PIR program
    config.enable_memory_optim()
    config.disable_glog_info()
    return config


def _choose_onednn(
    core: Any,
    config: Any,
    options: Mapping[str, Any],
    operators: Sequence[Operator],
    *,
    legacy: bool,
) -> None:
    if not options["onednn"]:
        config.disable_mkldnn()
        return
    if not core.is_compiled_with_onednn():
        raise BackendUnavailable("onednn: this build of Paddle has no oneDNN, as on ARM")
    reasons = misplaced(operators)
    if reversed_layout(operators) or (reasons and legacy):
        if options["bfloat16"]:
            reason = "; ".join(reasons) or "channels last"
            raise BackendUnavailable(f"bfloat16: oneDNN would compute the model wrongly ({reason})")
        config.disable_mkldnn()
        return
    config.enable_mkldnn()
    for name in (*LEFT_OUT, *([PLACEMENT] if reasons else [])):
        config.delete_pass(name)
    config.set_mkldnn_cache_capacity(options["cache_capacity"])
    if options["bfloat16"]:
        check_bfloat16(supported=core.supports_bfloat16_fast_performance())
        config.enable_mkldnn_bfloat16()


def _load_core() -> Any:
    """Import `paddle.base.libpaddle` without its parent packages, and initialise it as they do.

    Raises BackendUnavailable without the package paddlepaddle.

    **Invariant**: this process never imports the real `paddle` package. This relies on the pinned
    version; a test compares its results with those of the whole package.
    """
    package = importlib.util.find_spec("paddle")
    if package is None or package.origin is None:
        raise BackendUnavailable("the backend paddle_inference needs the package paddlepaddle")
    root = Path(package.origin).parent
    for name, path in (("paddle", root), ("paddle.base", root / "base")):
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(path)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    core = importlib.import_module("paddle.base.libpaddle")
    names = core.globals().keys()
    flags = [name.removeprefix("FLAGS_") for name in names if name.startswith("FLAGS_")]
    core.init_gflags(["--tryfromenv=" + ",".join(flags)])
    core.init_glog("paddle_inference")
    core.init_memory_method()
    core.init_devices()
    core.init_default_kernel_signatures()
    core.disable_signal_handler()
    return core
