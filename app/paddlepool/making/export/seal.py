"""Seals a program that was exported elsewhere: reads it, tries it out and writes its manifest.

`trial` records the expected outputs and tests whether rows are independent. `sealed_groups` finds
the instance groups that run the program correctly.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.ports import (
    AgreementOf,
    PredictorFactory,
    PredictorSpec,
    ServedModelInfo,
)
from paddlepool.contracts.tensors import DTYPES, Array, TensorSpec
from paddlepool.making.export.publish import Origin, sha256_of, write_manifest
from paddlepool.making.export.read_onnx import own_onnx, read_onnx_specs, with_own_onnx
from paddlepool.making.export.read_program import read_specs, with_advice
from paddlepool.making.export.sealed_groups import (
    UNKNOWN,
    GroupOnTrial,
    Usage,
    check_configured,
    check_usual,
    config_text,
)
from paddlepool.making.export.trial import Trial, run_trial
from paddlepool.making.export.trial_inputs import parse_shapes
from paddlepool.making.export.version_folder import read_folder
from paddlepool.models.repository.config import load_config
from paddlepool.models.repository.inputs import only_input, read_input
from paddlepool.models.repository.layout import named_outputs
from paddlepool.models.repository.manifest import ONNX_SUFFIX
from paddlepool.models.repository.selftest import SELFTEST, write_selftest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """Results of seal().

    `outputs` have the names that config.toml gives them. `groups` are the instance groups that were
    tried. `config` is the text of the new config.toml, empty if the file existed already. `unused`
    are the names of the entries of the directory that nothing opens.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    trial: Trial
    groups: tuple[GroupOnTrial, ...]
    config: str
    unused: tuple[str, ...]

    @property
    def rows(self) -> str:
        """Whether requests may share a batch, as a phrase."""
        if self.trial.independent:
            return "independent: requests may share a batch"
        if self.trial.independent is False:
            return "not independent: each request runs alone"
        free = all(tensor.shape[:1] == (-1,) for tensor in self.inputs)
        return f"none: {'an output is a scalar' if free else 'the first axis of an input is fixed'}"


def seal(
    directory: Path,
    *,
    open_predictor: PredictorFactory,
    real_inputs: Sequence[Path | Array] = (),
    shapes: Sequence[Sequence[str]] = (),
    usage: Usage = UNKNOWN,
    agreement_of: AgreementOf = lambda _: None,
    source: str = "",
    licence: str = "",
) -> Sealed:
    """Turn a directory `MODEL/VERSION` with a saved program into a version that can be served.

    `real_inputs` are .npz files, or values of the program's only input. Each of `shapes` has a text
    `NAME=SIZE,…` for every input. For their use see run_trial(). `source` and `licence` of the
    weights are recorded in the manifest.

    If there is no config.toml, writes one for this `usage`, as config_text() says; the measure of
    `agreement_of` judges groups of a lower precision on real inputs. Shapes of `usage.warmup` that
    do not fit the program are left out. Then writes selftest.npz. Writes manifest.json last,
    because that makes the version visible to servers. If writing one of these files fails, removes
    what it has written and raises the OSError.

    Raises ExportError, before it writes a file, if the program cannot be read or served, or as
    read_folder(), run_trial(), own_onnx(), check_usual() or check_configured() does. Raises
    ConfigError for an invalid config.toml, and for `real_inputs`, `shapes` or [[warmup]] that do
    not fit the program.
    """
    folder = read_folder(directory)
    program, params = folder.program, folder.params
    config_file = directory.parent / "config.toml"
    config = load_config(config_file)
    is_onnx = program.endswith(ONNX_SUFFIX)
    if is_onnx:
        inputs, outputs = read_onnx_specs(directory / program)
    else:
        inputs, outputs = read_specs(directory, program, params)
    _check(inputs, outputs, runner="ONNX Runtime" if is_onnx else "Paddle Inference")
    spec = PredictorSpec(
        directory=directory,
        program=program,
        params=params,
        inputs=inputs,
        outputs=outputs,
        backend="onnxruntime" if is_onnx else "paddle_inference",
        threads=1,
        format="onnx" if is_onnx else "paddle",
    )
    try:
        trial = run_trial(
            spec,
            config=config,
            open_predictor=open_predictor,
            real_inputs=[
                read_input(real, inputs) if isinstance(real, Path) else only_input(real, inputs)
                for real in real_inputs
            ],
            shapes=[parse_shapes(texts) for texts in shapes],
        )
    except ExportError as error:
        raise ExportError(with_advice(error.message)) from error
    named = named_outputs(trial.specs, config)
    spec = replace(spec, outputs=trial.specs)
    programs = []
    if folder.onnx:
        programs.append(own_onnx(spec, folder.onnx))
        open_predictor = with_own_onnx(open_predictor, folder.onnx)
    if config_file.exists():
        groups = check_configured(spec, config, trial.selftest, open_predictor)
        written = ""
    else:
        info = ServedModelInfo(
            name=directory.parent.name,
            version=1,
            directory=directory,
            inputs=inputs,
            outputs=trial.specs,
            pipeline=usage.pipeline,
        )
        judged = replace(trial.selftest, agreement=agreement_of(info))
        groups = check_usual(spec, judged, open_predictor)
        fitting = [shape for shape in usage.warmup if inputs[0].admits_shape(shape)]
        usage = replace(usage, warmup=fitting)
        written = config_text(trial, groups, usage, real=bool(real_inputs))
    with ExitStack() as incomplete:
        if written:
            incomplete.callback(config_file.unlink, missing_ok=True)
            config_file.write_text(written, "utf-8")
        incomplete.callback((directory / SELFTEST).unlink, missing_ok=True)
        write_selftest(directory, trial.selftest)
        write_manifest(
            directory,
            program=program,
            params=params,
            network=None,
            inputs=inputs,
            outputs=trial.specs,
            origin=Origin("foreign", source=source, licence=licence),
            weights_sha256=sha256_of(directory / (params or program)),
            programs=programs,
        )
        incomplete.pop_all()
    return Sealed(
        inputs=inputs,
        outputs=named,
        trial=trial,
        groups=groups,
        config=written,
        unused=folder.unused,
    )


def _check(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, runner: str) -> None:
    """Raise ExportError if there is no input or no output, or if one has a dtype not in DTYPES.

    Paddle, for example, returns bfloat16 as float32 with wrong values. `runner` is the name of the
    engine, for the message.
    """
    if not (inputs and outputs):
        raise ExportError(
            f"the program has {len(inputs)} inputs and {len(outputs)} outputs, needed is at least "
            "one of each"
        )
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if spec.dtype not in DTYPES:
                raise ExportError(
                    f"{kind} {spec.name} is {spec.dtype}, which {runner} cannot "
                    f"pass through; served are {', '.join(DTYPES)}: cast it in the model"
                )
