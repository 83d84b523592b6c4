"""Tries out a program before it is served: which inputs it accepts, and what it returns for them.

The outputs of Paddle's native kernels, or of ONNX Runtime for an ONNX program, count as right.
"""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from paddlepool.contracts.errors import BackendError, ExportError, PaddlepoolError
from paddlepool.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from paddlepool.contracts.tensors import Tensors, TensorSpec, all_finite
from paddlepool.making.export.trial_inputs import (
    INFERENCE_YML,
    LAST_RESORT,
    ODD,
    REALISTIC,
    SECOND,
    Sizes,
    described_shapes,
    filled_shapes,
    has_free_sizes,
    integer_inputs,
    is_picture,
    joined,
    nbytes,
    values,
)
from paddlepool.making.export.trial_rows import (
    are_independent,
    is_concatenation,
    selecting_operator,
)
from paddlepool.models.repository.config import ModelConfig
from paddlepool.models.repository.inputs import Shapes, check_shapes
from paddlepool.models.repository.selftest import RUN_SECONDS, Case, SelfTest, shapes_of

TOLERANCE = 1e-3
"""Allowed difference, as a share of the sum of a value's size and usual_size() of the output: ten
times the difference between two kernels that compute the same."""

FIRST_CASE_BYTES, CASE_BYTES = 32 << 20, 8 << 20
"""Maximum bytes of the inputs and outputs of a case whose sizes are chosen here: FIRST_CASE_BYTES
of the first case and of a batch of two rows, CASE_BYTES of any other. A version stores
its cases."""

IMPOSSIBLE = 1_000_000_000
"""A token id beyond every vocabulary."""

WIDE = {"uint8": 1 << 8, "int8": 1 << 7, "int32": 1 << 30, "int64": 1 << 40}
"""Ends (exclusive) of the ranges of integers that are no token ids, by dtype."""

HUNDREDS = 1000
"""End (exclusive) of the range of integers if the program does not run, or its outputs are not
finite, with the end in WIDE."""

GROWN_BYTES = 1 << 16
"""Maximum by which the outputs may grow with an integer that is their size. Larger ones say nothing
more, and the version would store them."""

STEP = 64
"""Factor between the integers that are tried first."""

FEW, MANY = 1, 16
"""Sizes of a free first axis in the first case: MANY if the first axis is no batch axis and the
inputs are no pictures, else FEW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of run_trial().

    `selftest` has the cases, `specs` are the outputs with their actual shapes and dtypes.
    `independent` is True if a row's outputs do not depend on the other rows of its batch; see
    _rows_on_trial() for when it is None. `source` says where the first case's shapes come from.
    `notes` are findings for the person who seals.
    """

    selftest: SelfTest
    specs: tuple[TensorSpec, ...]
    independent: bool | None
    source: str
    notes: tuple[str, ...] = ()


def run_trial(
    spec: PredictorSpec,
    *,
    config: ModelConfig,
    open_predictor: PredictorFactory,
    real_inputs: Sequence[Tensors] = (),
    shapes: Sequence[Shapes] = (),
) -> Trial:
    """Run a program on several inputs; equal calls choose equal inputs.

    The first cases come from one source, the first of these that has any inputs or shapes:
    `real_inputs`; `shapes`; the largest and the smallest [[warmup]] of `config`; an inference.yml
    beside the program. Without any, or if the program refuses the shapes of inference.yml, the
    first case is of a realistic size. Further cases follow if the program accepts them: two rows of
    odd sizes and, if it has free sizes, of a second size.

    Raises ExportError if the program cannot be opened, accepts no shape, refuses one of
    `real_inputs`, `shapes` or [[warmup]], or returns an output that is not finite, is too large,
    differs between equal runs, or varies in rank. Raises ConfigError for shapes that do not fit.
    """
    native = replace(spec, options={"onednn": False}) if spec.format == "paddle" else spec
    with closing(_Trials(native, open_predictor)) as trials:
        picture = is_picture(spec.inputs)
        source, named = _named_shapes(spec, config, shapes)
        if real_inputs:
            source, named = "--input", []
        trials.find_ranges([*_plans(spec, ODD[picture], 1), *named, *_of(real_inputs)])
        alone = [_of_one_row(spec, shape) for shape in (*named, *_of(real_inputs))]
        cases, independent = _rows_on_trial(trials, spec, [*_plans(spec, ODD[picture], 1), *alone])
        free = has_free_sizes(spec.inputs)
        several_rows = any(tensor.shape[:1] == (-1,) for tensor in spec.inputs)
        second = free or (several_rows and independent is None)
        plans = _plans(spec, SECOND[picture], 2) if second else []
        cases += _fullest(trials, plans, CASE_BYTES, seeds=[4])
        if source == INFERENCE_YML:
            tried = [trials.random_case(shape, seed=5, limit=FIRST_CASE_BYTES) for shape in named]
            chosen = [case for case in tried if case is not None]
        else:
            chosen = [trials.case(inputs, source) for inputs in real_inputs]
            chosen += [trials.case(trials.values(shape, seed=5), source) for shape in named]
        if not chosen:
            only = "its only size but for the rows" if several_rows else "its only size"
            source = "a usual size" if free else only
            rows = MANY if independent is False and not picture else FEW
            usual = [*_plans(spec, REALISTIC[picture], rows), *_plans(spec, REALISTIC[picture], 1)]
            most = FIRST_CASE_BYTES if free else math.inf
            chosen = _fullest(trials, usual, most, seeds=[4]) or cases[:1]
            if not chosen and trials.not_finite:
                raise ExportError(
                    f"{trials.not_finite} for random numbers, also for such from 0 to 1; name a "
                    "real input with --input"
                )
            if not chosen:
                raise ExportError(
                    f"an input and its outputs are larger than {FIRST_CASE_BYTES >> 20} MiB at "
                    "every tried size; name a smaller one with --shape"
                )
        first, *others = chosen
        cases = [*others, *(case for case in cases if case is not first)]
        again = trials.run(first.inputs)
        test = SelfTest(
            inputs=first.inputs,
            outputs=first.outputs,
            tolerance=TOLERANCE,
            more=tuple(cases),
            relative=True,
            real=len(chosen) if source == "--input" else 0,
        )
        try:
            test.compare(first, again)
        except BackendError as error:
            raise ExportError(
                f"the program is random: on the same input, {error.message.partition(': ')[2]}"
            ) from error
        return Trial(
            selftest=test,
            specs=tuple(_as_seen(output, trials.seen) for output in spec.outputs),
            independent=independent,
            source=source,
            notes=tuple(trials.notes),
        )


def _named_shapes(
    spec: PredictorSpec, config: ModelConfig, shapes: Sequence[Shapes]
) -> tuple[str, list[Shapes]]:
    """Return the name of a source of shapes, and the shapes that it has.

    The source is --shape if there are `shapes`, else [[warmup]] (its largest and smallest shapes),
    else inference.yml, whose list may be empty; see described_shapes(). Raises ConfigError if
    shapes of --shape or [[warmup]] do not fit.
    """
    if shapes:
        return "--shape", [check_shapes(spec.inputs, shape, source="--shape") for shape in shapes]
    if config.warmup:
        checked = [
            check_shapes(spec.inputs, warmup.shapes, source="[[warmup]]")
            for warmup in config.warmup
        ]
        ordered = sorted(checked, key=lambda shape: -sum(map(np.prod, shape.values())))
        return "[[warmup]]", [ordered[0], *ordered[1:][-1:]]  # the largest and the smallest
    return INFERENCE_YML, described_shapes(spec.directory, spec.inputs)


def _of(real_inputs: Sequence[Tensors]) -> list[Shapes]:
    return [{name: array.shape for name, array in inputs.items()} for inputs in real_inputs]


def _of_one_row(spec: PredictorSpec, shapes: Shapes) -> Shapes:
    return {
        one.name: (1, *shapes[one.name][1:]) if one.shape[:1] == (-1,) else shapes[one.name]
        for one in spec.inputs
    }


def _plans(spec: PredictorSpec, sizes: Sequence[Sizes], rows: int) -> list[Shapes]:
    every = (*sizes, *LAST_RESORT[is_picture(spec.inputs)])
    plans = [filled_shapes(spec.inputs, size, rows=rows) for size in every]
    return [plan for number, plan in enumerate(plans) if plan not in plans[:number]]


class _Trials:
    """Runs the program, and collects what the runs show. A process that dies is replaced.

    `seen` are the outputs of all runs that gave a case, `notes` findings for the user. `not_finite`
    says which outputs of random_case() were last not finite. `refusal` is the last error of
    outputs().
    """

    def __init__(self, spec: PredictorSpec, open_predictor: PredictorFactory) -> None:
        self._spec = spec
        self._open_predictor = open_predictor
        self._predictor: Predictor | None = None
        self._dtypes = {tensor.name: tensor.dtype for tensor in spec.inputs}
        self._below = {
            name: 2 if (dtype := self._dtypes[name]).startswith("int") else WIDE[dtype]
            for name in integer_inputs(spec.inputs)
        }
        self.seen: list[Tensors] = []
        self.notes: list[str] = []
        self.not_finite = ""
        self.refusal: PaddlepoolError | None = None

    def run(self, inputs: Tensors) -> Tensors:
        """Run once; open a predictor if none is open.

        Raises ExportError if it cannot be opened, and the errors of Predictor.run().
        """
        if self._predictor is None:
            try:
                self._predictor = self._open_predictor(self._spec)
            except PaddlepoolError as error:
                name = "Paddle" if self._spec.format == "paddle" else self._spec.backend
                raise ExportError(f"{name} cannot open the program: {error.message}") from error
        try:
            return self._predictor.run(inputs, timeout=RUN_SECONDS)
        except PaddlepoolError:
            if self._predictor.failure() is not None:
                self.close()
            raise

    def outputs(self, inputs: Tensors) -> Tensors | None:
        """Run once and return the outputs; None if the run fails, with `refusal` set.

        Raises ExportError if no predictor can be opened, or if the run does not end.
        """
        began = time.monotonic()
        try:
            return self.run(inputs)
        except ExportError:
            raise
        except PaddlepoolError as error:
            if time.monotonic() - began >= RUN_SECONDS:  # others would not end, either
                sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
                raise ExportError(
                    f"a run on {sizes} did not end within {RUN_SECONDS:.0f} s: sealing tries "
                    "random numbers, and large integers, so no loop may depend on their values"
                ) from error
            self.refusal = error
            return None

    def close(self) -> None:
        if self._predictor is not None:
            self._predictor.close()
            self._predictor = None

    def values(self, shapes: Shapes, *, seed: int, both_signs: bool = True) -> Tensors:
        return values(
            self._spec.inputs, shapes, seed=seed, both_signs=both_signs, below=self._below
        )

    def case(self, inputs: Tensors, source: str) -> Case:
        """Run an input that comes from `source`, and return the case.

        If an output is not finite and the source is not --input, runs random values from 0 to 1
        instead. Raises ExportError if the program refuses the input or an output is still not
        finite.
        """
        if (outputs := self.outputs(inputs)) is None:
            reason = self.refusal.message if self.refusal else ""
            raise ExportError(f"{source}: {shapes_of(inputs)}: {reason}") from self.refusal
        if not all_finite(outputs) and source != "--input":
            shapes = {name: array.shape for name, array in inputs.items()}
            inputs = self.values(shapes, seed=5, both_signs=False)
            outputs = self.run(inputs)
        if not all_finite(outputs):
            raise ExportError(f"{source}: {shapes_of(inputs)}: {_not_finite(outputs)}")
        self.seen.append(outputs)
        return Case(inputs=inputs, outputs=outputs)

    def random_case(self, shapes: Shapes, *, seed: int, limit: float) -> Case | None:
        """Run random values of these shapes and return the case.

        Numbers of both signs are tried first, then numbers from 0 to 1, because the logarithm of a
        negative number is not finite. Returns None if the program refuses the shapes, if inputs and
        outputs have more than `limit` bytes, or if neither range gives finite outputs, for
        example because a sequence is too short for a mean.
        """
        for both_signs in (True, False):
            inputs = self.values(shapes, seed=seed, both_signs=both_signs)
            outputs = self.outputs(inputs)
            if outputs is None or nbytes(inputs, outputs) > limit:
                return None
            if all_finite(outputs):
                self.seen.append(outputs)
                if not both_signs and (note := _POSITIVE_ONLY) not in self.notes:
                    self.notes.append(note)
                return Case(inputs=inputs, outputs=outputs)
            self.not_finite = _not_finite(outputs)
        return None

    def find_ranges(self, tried: Sequence[Shapes]) -> None:
        """Find which values each integer input accepts; values() then uses them.

        An input with an upper bound has token ids. If none has, the integers are numbers: they get
        the widest range that works, except in masks. Uses the first of the shapes `tried` that the
        program accepts. Raises ExportError if it accepts none.
        """
        shapes = self._accepted(tried)
        ids = []
        for name in integer_inputs(self._spec.inputs):
            high, why = self._highest(name, shapes)
            if high < IMPOSSIBLE:
                self._below[name] = high
                self.notes.append(f"{name} {why} {high}")
                ids.append(name)
        # Beside token ids, other integers are mostly masks of 0 and 1.
        for name, before in self._below.items() if not ids else ():
            if "mask" in name:
                continue
            for end in (WIDE[self._dtypes[name]], HUNDREDS):
                self._below[name] = end
                outputs = self.outputs(self.values(shapes, seed=3))
                if outputs is not None and all_finite(outputs):
                    break
            else:
                self._below[name] = before

    def _accepted(self, tried: Sequence[Shapes]) -> Shapes:
        for shapes in tried:
            if self.outputs(self.values(shapes, seed=3)) is not None:
                return shapes
        reason = self.refusal.message if self.refusal else ""
        raise ExportError(
            f"the program ran on none of the tried shapes ({reason}); name one with --shape or "
            "under [[warmup]] in config.toml"
        ) from self.refusal

    def _highest(self, name: str, shapes: Shapes) -> tuple[int, str]:
        """Return the bound below which an input has usable integers, and what it does with them.

        Integers are usable if the program accepts them, and its outputs do not grow by more than
        GROWN_BYTES; IMPOSSIBLE if all are. The search begins with small ones, because a large one
        may be a size that takes all memory.
        """
        inputs = self.values(shapes, seed=3)

        def grown(end: int) -> float:
            """Return the bytes of the outputs, for which every element is `end` - 1."""
            # Every element, because each column may have a vocabulary of its own.
            outputs = self.outputs({**inputs, name: np.full_like(inputs[name], end - 1)})
            return math.inf if outputs is None else nbytes(outputs)

        most = min(IMPOSSIBLE, WIDE[self._dtypes[name]])
        low = self._below[name] if self._below[name] < most else 1
        least = grown(low)
        limit = GROWN_BYTES + (0 if math.isinf(least) else least)
        high = min(most, STEP * low)
        while (found := grown(high)) <= limit:
            if high == most:
                return IMPOSSIBLE, ""
            low, high = high, min(most, STEP * high)
        while high - low > 1:
            middle = isqrt(low * high) if high > 4 * low else (low + high) // 2
            if (size := grown(middle)) <= limit:
                low = middle
            else:
                high, found = middle, size
        if math.isinf(found):
            return low, "takes integers below"
        return low, "decides the size of an output; sealing tries integers below"


_POSITIVE_ONLY = (
    "outputs are not finite for numbers of both signs; some inputs have numbers from 0 to 1"
)


def _not_finite(outputs: Tensors) -> str:
    names = [name for name, array in outputs.items() if not all_finite({name: array})]
    return f"output {', '.join(names)} is not finite"


def _fullest(
    trials: _Trials, plans: Sequence[Shapes], limit: float, *, seeds: Sequence[int]
) -> list[Case]:
    """Return a case for each seed, of the first of `plans` for which random_case() makes them all.

    Returns no cases if there is none. Shapes with an empty output are used only if no others fit:
    for a window that is longer than a sequence, Paddle returns an empty output and other engines
    raise an error.
    """
    first: list[Case] = []
    for shapes in plans:
        cases: list[Case] = []
        for seed in seeds:
            if case := trials.random_case(shapes, seed=seed, limit=limit):
                cases.append(case)
            else:
                break
        else:
            if all(array.size for case in cases for array in case.outputs.values()):
                return cases
            first = first or cases
    return first


def _rows_on_trial(
    trials: _Trials, spec: PredictorSpec, plans: Sequence[Shapes]
) -> tuple[list[Case], bool | None]:
    """Return cases of the first usable of `plans`, and whether rows are independent of each other.

    Two rows are run alone and, if every input has a free first axis, as one batch. The batch is the
    case if its outputs are finite, else the rows are two cases; cases that are too large are left
    out. The second value is None if an input has no free first axis. Otherwise it is False if the
    program accepts no row or no batch, and None if an output is a scalar. It is True if each of the
    two rows has the same outputs as alone, no operator selects by values, and are_independent().
    """
    rows = all(tensor.shape[:1] == (-1,) for tensor in spec.inputs)
    free = has_free_sizes(spec.inputs)
    most = CASE_BYTES if free else math.inf
    pair = _fullest(trials, plans, most, seeds=[1, 2])
    if not pair:
        return [], False if rows else None
    one, other = pair
    alone = [case for case in pair if _is_small(case)]
    if not rows:
        return alone, None
    both = joined(one.inputs, other.inputs)
    outputs = trials.outputs(both)
    if outputs is None or not all_finite(outputs):
        return alone, False
    trials.seen.append(outputs)
    batch = Case(inputs=both, outputs=outputs)
    cases = [batch] if _is_small(batch) else []
    arrays = [
        array for tensors in (one.outputs, other.outputs, outputs) for array in tensors.values()
    ]
    if not all(array.ndim for array in arrays):
        return cases, None
    # All lengths must be equal: an output may have a row per detection instead of per input row.
    lengths = {len(array) for array in (*both.values(), *outputs.values())}
    alike = all(
        is_concatenation(one.outputs[name], other.outputs[name], outputs[name]) for name in outputs
    )
    if len(lengths) > 1 or not alike:
        return cases, False
    if operator := selecting_operator(spec.directory / spec.program):
        trials.notes.append(f"{operator} selects by values: its rows may depend on each other")
        return cases, False
    return cases, are_independent(trials.outputs, spec, one.inputs, one.outputs)


def _is_small(case: Case) -> bool:
    return nbytes(case.inputs, case.outputs) <= FIRST_CASE_BYTES


def _as_seen(spec: TensorSpec, seen: Sequence[Tensors]) -> TensorSpec:
    """Return a declared output with the dtype and shape of the arrays in `seen`.

    Paddle infers some shapes wrongly. A size is fixed only if the program declares it and every
    array has it. Raises ExportError if the number of axes varies.
    """
    arrays = [tensors[spec.name] for tensors in seen]
    ranks = sorted({array.ndim for array in arrays})
    if len(ranks) > 1:
        raise ExportError(
            f"output {spec.name} has {' or '.join(map(str, ranks))} axes, depending on the input; "
            "a served output needs a fixed number of axes"
        )
    declared = spec.shape if len(spec.shape) == ranks[0] else (-1,) * ranks[0]
    shape = tuple(
        size if size > 0 and all(array.shape[axis] == size for array in arrays) else -1
        for axis, size in enumerate(declared)
    )
    return TensorSpec(spec.name, arrays[0].dtype.name, shape)
