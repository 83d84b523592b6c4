"""Finds the instance groups that run a sealed program correctly, and composes its config.toml."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from paddlepool.contracts.errors import BackendError, ExportError, PaddlepoolError
from paddlepool.contracts.ports import PredictorFactory, PredictorSpec
from paddlepool.contracts.tensors import mean_difference
from paddlepool.making.export.publish import template
from paddlepool.making.export.trial import Trial
from paddlepool.models.repository.config import Budget, ModelConfig
from paddlepool.models.repository.selftest import RUN_SECONDS, SelfTest, usual_size

LOWER_PRECISION_SHARE = 0.02
"""Maximum mean difference of outputs in a lower precision, as a share of usual_size(). Of whole
numbers it is the share that differs."""

LEAST_AGREEMENT = 0.95
"""Minimum agreement of outputs in a lower precision, on each real input, by the task's measure."""

MARGIN = 3.0
"""The budget of a group is this times the measured mean difference: other inputs may lose more."""

PADDLE_GROUPS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("onednn", "paddle_inference", {"onednn": True}),
    ("native", "paddle_inference", {"onednn": False}),
    ("onednn_bf16", "paddle_inference", {"bfloat16": True}),
    ("onnxruntime", "onnxruntime", {}),
    ("openvino", "openvino", {}),
    ("openvino_bf16", "openvino", {"bfloat16": True}),
)
"""Groups to try for a Paddle program: name, backend and options.

The first one with right outputs becomes the first group of config.toml.
"""

ONNX_GROUPS = PADDLE_GROUPS[3:]
"""Groups to try for an ONNX program."""
REFERENCES = ("native", "onnxruntime")
"""Names of the groups whose backends compute the expected outputs of a Paddle program, and of an
ONNX program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOnTrial:
    """An instance group and the result of its trial.

    `refusal` says what was wrong, and is empty if all outputs were right. `budget` is the loss that
    a group of a lower precision may have, None for other groups.
    """

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    budget: Budget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is known about the use of a model, for its new config.toml.

    `pipeline` is its task. `max_batch_size` and `max_queue_size` (None: the default) apply if rows
    are independent. `warmup` are shapes of the only input for [[warmup]]. With `on_demand`, the
    first request starts the processes.
    """

    pipeline: str | None = None
    max_batch_size: int = 8
    max_queue_size: int | None = None
    warmup: Sequence[tuple[int, ...]] = ()
    on_demand: bool = False


UNKNOWN = Usage()


def check_usual(
    spec: PredictorSpec, selftest: SelfTest, open_predictor: PredictorFactory
) -> tuple[GroupOnTrial, ...]:
    """Try each of PADDLE_GROUPS or ONNX_GROUPS on all cases of the self-test; return the results.

    Raises ExportError if the group that computed the expected outputs (REFERENCES) fails.
    """
    usual = PADDLE_GROUPS if spec.format == "paddle" else ONNX_GROUPS
    tried = tuple(
        _on_trial(spec, GroupOnTrial(name=name, backend=backend, options=options), selftest,
                  open_predictor)
        for name, backend, options in usual
    )  # fmt: skip
    for group in tried:
        if group.name == REFERENCES[spec.format != "paddle"] and group.refusal:
            raise ExportError(f"the program cannot be served: {group.name}: {group.refusal}")
    return tried


def _on_trial(
    spec: PredictorSpec, group: GroupOnTrial, selftest: SelfTest, open_predictor: PredictorFactory
) -> GroupOnTrial:
    opening = replace(spec, backend=group.backend, options=group.options)
    try:
        if group.options.get("bfloat16"):
            return replace(group, budget=_budget(opening, selftest, open_predictor))
        selftest.opened(open_predictor, opening).close()
    except PaddlepoolError as error:
        return replace(group, refusal=error.message)
    return group


def _budget(spec: PredictorSpec, selftest: SelfTest, open_predictor: PredictorFactory) -> Budget:
    """Return the loss that a group may have: MARGIN times the largest mean difference in any case.

    If there are real cases and the model's task has a measure, the least agreement is set, too.
    Raises BackendError if a loss is too large (LOWER_PRECISION_SHARE), an agreement too low
    (LEAST_AGREEMENT) or a shape wrong, and the errors of opening and running a predictor.
    """
    judged = selftest.agreement if selftest.real else None
    worst = 0.0
    with closing(open_predictor(spec)) as predictor:
        for case in selftest.cases:
            outputs = predictor.run(case.inputs, timeout=RUN_SECONDS)
            for name, expected in case.outputs.items():
                if outputs[name].shape != expected.shape:
                    raise BackendError(
                        f"output {name} has the shape {list(outputs[name].shape)} in place of "
                        f"{list(expected.shape)}"
                    )
                loss = mean_difference(outputs, {name: expected})
                limit = LOWER_PRECISION_SHARE
                if expected.dtype.kind == "f":
                    limit *= usual_size(expected)
                if not loss <= limit:
                    raise BackendError(
                        f"output {name} differs by {loss:.3g} on average, limit {limit:.3g}"
                    )
                worst = max(worst, loss)
            if judged and selftest.is_judged(case):
                agreement = judged(outputs, case.outputs)
                if not agreement >= LEAST_AGREEMENT:
                    raise BackendError(
                        f"the agreement on a real input is {agreement:.3f}, limit {LEAST_AGREEMENT}"
                    )
    return Budget(
        mean_difference=MARGIN * max(worst, 1e-9), agreement=LEAST_AGREEMENT if judged else None
    )


def check_configured(
    spec: PredictorSpec, config: ModelConfig, selftest: SelfTest, open_predictor: PredictorFactory
) -> tuple[GroupOnTrial, ...]:
    """Try the groups of an existing config.toml on all cases of the self-test; return the results.

    Groups with a derived program, on a GPU, or with an agreement in their budget are not tried:
    they are tested when a server opens them. Raises ExportError if the default group was tried and
    failed, or, with `default_group = "auto"`, if every tried group failed.
    """
    tried = []
    for group in config.instance_group:
        judged_later = group.budget is not None and group.budget.agreement is not None
        if group.program is not None or judged_later or group.options.get("device") == "gpu":
            continue
        refusal = ""
        opening = replace(spec, backend=group.backend, threads=group.threads, options=group.options)
        try:
            selftest.judging(group).opened(open_predictor, opening).close()
        except PaddlepoolError as error:
            refusal = error.message
        tried.append(GroupOnTrial(name=group.name, backend=group.backend, refusal=refusal))
    refusals = {group.name: group.refusal for group in tried}
    if config.first_group is None:
        if reason := refusals.get(config.default_group):
            raise ExportError(
                f"the default group {config.default_group} of config.toml cannot serve the "
                f"program: {reason}"
            )
    elif tried and all(refusals.values()):
        raise ExportError(f"no group of config.toml can serve the program: {tried[0].refusal}")
    return tuple(tried)


def config_text(
    trial: Trial, groups: Sequence[GroupOnTrial], usage: Usage = UNKNOWN, *, real: bool
) -> str:
    """Return the text of config.toml with the groups whose outputs were right.

    The default group is "auto" if several groups are candidates: the first one then serves until a
    server has measured them. Groups of a lower precision are candidates only if they were tried on
    real inputs (`real`): random ones tell little about the loss. Comments name the groups that are
    left out, with the reason.
    """
    fit = [group for group in groups if not group.refusal]
    text = ""
    if trial.independent is not None:
        kind = "unbatched"
        if trial.independent:
            kind = "batched" if usage.max_batch_size > 1 else "single"
        text = template(kind, size=usage.max_batch_size)
        if trial.independent and usage.max_queue_size is not None:
            text += f"max_queue_size = {usage.max_queue_size}\n"
        text += "\n"
    for number, group in enumerate(fit):
        text += f'[[instance_group]]\nname = "{group.name}"\nbackend = "{group.backend}"\n'
        text += "" if number else 'count = "cores"\n'
        text += 'start = "on_demand"\n' if number or usage.on_demand else ""
        if group.budget is not None:
            limits = [f"mean_difference = {group.budget.mean_difference:.3g}"]
            if group.budget.agreement is not None:
                limits.append(f"agreement = {group.budget.agreement}")
            text += f"budget = {{ {', '.join(limits)} }}\n"
            if not real:
                text += template("unjudged")
        if group.options:
            text += "[instance_group.options]\n"
            text += "".join(f"{key} = {str(on).lower()}\n" for key, on in group.options.items())
        text += "\n"
    name = next(iter(trial.selftest.inputs))
    for shape in usage.warmup:
        text += f"[[warmup]]\nshapes = {{ {name} = {list(shape)} }}\n\n"
    refused = "".join(
        f"# {group.name} is left out: {' '.join(group.refusal.split())}\n"
        for group in groups
        if group.refusal
    )
    default = "auto" if sum(group.budget is None or real for group in fit) > 1 else fit[0].name
    head = f'pipeline = "{usage.pipeline}"\n' if usage.pipeline else ""
    head += template("sealed", default=default)
    return f"{head}\n{text}{refused}".rstrip("\n") + "\n"
