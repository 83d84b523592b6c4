"""`paddlepool compare`, on fakes for the arithmetic and on real predictors of a tiny graph."""

import contextlib
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.cli import main
from paddlepool.contracts.errors import BackendError, ConfigError, InvalidTensor
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.comparison.measure import (
    measure_concurrent,
    measure_single,
    open_groups,
    runs_of_slice,
)
from paddlepool.evidence.comparison.result import Comparison, compare, group_results, recommend
from paddlepool.models.repository.config import Ragged
from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from tests.engine.fakes import FakeFactory, FakePredictor, ManualClock, doubled, row
from tests.model_files import group, write_config, write_version


class Slow:
    """A behaviour that takes `seconds` of the clock and adds `drift` to what is right."""

    def __init__(self, clock: ManualClock, seconds: float, drift: float = 0.0) -> None:
        self._clock, self._seconds, self._drift = clock, seconds, drift
        self.rows: list[float] = []

    def __call__(self, inputs: Tensors) -> Tensors:
        self._clock.advance(self._seconds)
        self.rows.append(float(inputs["x"][0, 0]))  # type: ignore[arg-type]
        return {"y": doubled(inputs)["y"] + np.float32(self._drift)}  # type: ignore[operator]


def predictor(behaviour: Any) -> Any:
    opened = FakeFactory(behaviour=behaviour)(None)  # type: ignore[arg-type]
    opened.run(row(0), timeout=1)  # its self-test
    return opened


def test_groups_run_in_turns_on_the_same_inputs(double: ModelFiles) -> None:
    clock = ManualClock()
    behaviours = {"main": Slow(clock, 0.1), "spare": Slow(clock, 0.4, drift=0.25)}
    predictors = {name: predictor(behaviour) for name, behaviour in behaviours.items()}
    samples = [("a", row(1)), ("b", row(2))]
    runs = measure_single(predictors, samples, requests=10, clock=clock)
    assert behaviours["main"].rows == behaviours["spare"].rows == [1, 2] + 5 * [1, 2]
    slow, fast = group_results(
        double.config, runs, loads={}, resident={"main": 1, "spare": 2}, task=None, tolerance=1e-4
    )
    assert (slow.group, fast.group) == ("spare", "main")
    assert (slow.p50_seconds, fast.p50_seconds) == pytest.approx((0.4, 0.1))
    assert (slow.max_abs_drift, fast.max_abs_drift) == (0.25, 0.0)
    assert (slow.base, slow.effective) == ("main", True)
    assert (fast.base, fast.effective) == (None, None)
    assert slow.p95_seconds == pytest.approx(0.4)


def test_busy_runs_use_every_predictor() -> None:
    """Each predictor has a client of its own; no request is run twice or left out."""
    clock = ManualClock()
    behaviours = [Slow(clock, 0.0) for _ in range(3)]
    loads = measure_concurrent(
        {"main": [predictor(behaviour) for behaviour in behaviours]},
        [("a", row(1)), ("b", row(2))],
        requests=48,
    )
    assert loads["main"].instances == 3
    assert len(loads["main"].seconds) == 48
    assert len(loads["main"].slices) == 8
    assert sum(len(behaviour.rows) for behaviour in behaviours) == 48
    assert [runs_of_slice(20, instances) for instances in (1, 2, 3, 4)] == [3, 4, 3, 4]


def compared(files: ModelFiles, open_predictor: Any, **options: Any) -> Comparison:
    return compare(
        files,
        open_predictor=open_predictor,
        task=None,
        requests=2,
        concurrent=False,
        **options,
    )


def test_a_group_that_is_refused_is_told_and_the_others_run(double: ModelFiles) -> None:
    """A missing GPU must not take the comparison with it; a refused default must."""

    def refusing(name: str) -> Any:
        factory = FakeFactory()
        names = iter(("main", "spare", "main", "main"))

        def open_predictor(spec: Any) -> Any:
            if next(names) == name:
                raise BackendError("no such device")
            return factory(spec)

        return open_predictor

    found = compared(double, refusing("spare"))
    assert [result.group for result in found.groups] == ["main"]
    assert found.refused == {"spare": "no such device"}
    assert found.as_json()["refused"] == [{"group": "spare", "reason": "no such device"}]
    with pytest.raises(BackendError, match="default group main cannot run: no such device"):
        compared(double, refusing("main"))


@pytest.mark.parametrize("error", [BackendError("no room"), KeyboardInterrupt()], ids=str)
def test_a_group_that_cannot_be_opened_whole_is_closed(
    double: ModelFiles, error: BaseException
) -> None:
    """A refusal is a result; Ctrl-C goes on."""
    factory = FakeFactory()

    def open_predictor(spec: PredictorSpec) -> FakePredictor:
        if factory.opened:
            raise error
        return factory(spec)

    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        _, refused = open_groups(
            double,
            [double.config.group("main")],
            stack=stack,
            open_predictor=open_predictor,  # type: ignore[arg-type]
            selftest=double.selftest(),
            count=lambda _group: 2,
        )
        assert refused == {"main": "no room"}
    assert all(predictor.closed.is_set() for predictor in factory.opened)
    assert len(factory.opened) == 1


@pytest.mark.parametrize("named", [("spare",), ("spare", "main")])
def test_only_the_named_groups_run(double: ModelFiles, named: tuple[str, ...]) -> None:
    """Without the default group the first one is what others are compared with."""
    found = compared(double, FakeFactory(), groups=named)
    assert {result.group for result in found.groups} == set(named)
    assert found.default_group == ("main" if "main" in named else "spare")
    alone = recommend(found, double.config).reason == "no other group ran"
    assert alone == (len(named) == 1)


def test_ragged_samples_are_padded_as_requests_are(double: ModelFiles, tmp_path: Path) -> None:
    ragged = Ragged(input="x", axis=1, step=4, max=8)
    files = replace(double, config=double.config.model_copy(update={"ragged": (ragged,)}))
    widths: set[int] = set()

    def observed(inputs: Tensors) -> Tensors:
        widths.add(inputs["x"].shape[1])
        return doubled(inputs)

    np.savez(tmp_path / "rows.npz", x=np.ones((1, 5)))
    compared(files, FakeFactory(behaviour=observed), inputs=(tmp_path / "rows.npz",))
    assert widths == {8}
    np.savez(tmp_path / "rows.npz", x=np.ones((1, 9)))
    with pytest.raises(InvalidTensor, match="axis 1 of input 'x' has size 9, limit 8"):
        compared(files, FakeFactory(), inputs=(tmp_path / "rows.npz",))


def test_real_arrays_go_with_every_model(double: ModelFiles, tmp_path: Path) -> None:
    """Without a task as well; a file that does not fit is named with what would fit."""
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.full((1, 5), 3.0))  # float64, and every value is a float32 as well
    found = compared(double, FakeFactory(), inputs=(rows,))
    assert found.samples == ("rows.npz",)
    for arrays, message in (
        ({"y": np.ones((1, 5))}, r"rows\.npz names y; the program takes x"),
        ({"x": np.ones(5)}, r"rows\.npz: x of shape \[5\] does not fit \[-1, -1\]"),
        ({"x": np.array([["a"]])}, r"rows\.npz: x should be float32, received <U1"),
        ({"x": np.array([[1 + 1e-3j]])}, r"rows\.npz: x should be float32, received complex128"),
    ):
        np.savez(rows, **arrays)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            compared(double, FakeFactory(), inputs=(rows,))
    rows.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"rows\.npz cannot be read as arrays by name"):
        compared(double, FakeFactory(), inputs=(rows,))
    with pytest.raises(ConfigError, match=r"a\.png: a model without a pipeline reads only \.npz"):
        compared(double, FakeFactory(), inputs=(tmp_path / "a.png",))


def test_nothing_is_measured_on_one_pixel(tmp_path: Path) -> None:
    """As older versions were sealed: the input is too small to tell, and the answer says so."""
    write_config(tmp_path / "double", group("onednn"))
    x = np.ones((1, 1), np.float32)
    write_version(tmp_path / "double" / "1", inputs={"x": x}, outputs={"y": 2 * x})
    small = ModelRepository(tmp_path).read("double", 1)
    with pytest.raises(ConfigError, match=r"too small to tell: x \[1, 1\]; seal .* use --input"):
        compared(small, FakeFactory())


@pytest.mark.paddle
def test_real_predictors_end_to_end(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, plot = tmp_path / "found.json", tmp_path / "found.svg"
    arguments = ["compare", "tiny", "--repository", str(tiny_model_repository)]
    arguments += ["--requests", "12", "--json", str(target), "--plot", str(plot)]
    assert main(arguments) == 0
    printed, progress = capsys.readouterr()
    assert "all cores: run 1 to " in progress  # no terminal, so no bar
    assert "Thread budgets are equal" in printed
    [advice] = [line for line in printed.splitlines() if line.startswith("Recommended: ")]
    found = json.loads(target.read_text("utf-8"))
    groups = {result["group"]: result for result in found["groups"]}
    recommended = found["recommended"]
    assert advice == f"Recommended: {recommended['group']}: {recommended['reason']}."
    assert groups.keys() == {"onednn", "native"}
    for result in groups.values():
        assert result["p50_seconds"] <= result["p95_seconds"]
        assert result["times_as_fast"] == pytest.approx(
            result["concurrent_per_second"] / groups["onednn"]["concurrent_per_second"]
        )
        assert result["max_abs_drift"] < 1e-4
        assert result["effective"] in (True, False, None)
        assert result["reason"]
        assert result["resident_bytes"] > 50e6
        assert result["concurrent_per_second"] > 0
    drawn = ElementTree.parse(plot)
    assert "native (1t)" in "".join(drawn.getroot().itertext())
