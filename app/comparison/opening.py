"""Predictors for a comparison: opened one after another, each proven by the golden self-test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.contracts.errors import PaddlepoolError
from app.contracts.ports import Predictor, PredictorFactory
from app.repository.config import InstanceGroup
from app.repository.layout import ModelFiles
from app.repository.selftest import SelfTest

FIRST_RUN_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What could be opened, by group, and why the rest was refused."""

    predictors: dict[str, list[Predictor]]
    refused: dict[str, str]

    def close(self) -> None:
        for predictors in self.predictors.values():
            for predictor in predictors:
                predictor.close()


def open_groups(
    files: ModelFiles,
    groups: list[InstanceGroup],
    *,
    open_predictor: PredictorFactory,
    selftest: SelfTest,
    count: Callable[[InstanceGroup], int] = lambda _: 1,
    opened_one: Callable[[], None] = lambda: None,
) -> Opened:
    """Opens `count(group)` predictors of each group; refusals are in the result, not raised."""
    opened = Opened(predictors={}, refused={})
    try:
        for group in groups:
            test = selftest.judging(group)
            predictors = opened.predictors[group.name] = []
            try:
                for _ in range(count(group)):
                    predictors.append(
                        test.opened(open_predictor, files.spec(group), timeout=FIRST_RUN_SECONDS)
                    )
                    opened_one()
            except PaddlepoolError as error:
                for predictor in opened.predictors.pop(group.name):
                    predictor.close()
                opened.refused[group.name] = error.message
    except BaseException:
        opened.close()
        raise
    return opened
