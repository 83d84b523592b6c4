"""Threads against cores."""

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.engine.registry.thread_budget import ThreadBudget, check_threads, thread_budget
from paddlepool.models.repository.config import InstanceGroup, ModelConfig


def config(*groups: tuple[int, int, str]) -> ModelConfig:
    return ModelConfig(
        default_group="g0",
        instance_group=tuple(
            InstanceGroup(name=f"g{number}", backend="b", count=count, threads=threads, start=start)  # type: ignore[arg-type]
            for number, (count, threads, start) in enumerate(groups)
        ),
    )


def test_the_budget_is_the_threads_of_the_model_that_uses_most() -> None:
    """2 × 1 + 1 × 2 are 4 threads; a group on demand is left out, and models do not add up."""
    models = [
        config((2, 1, "always"), (1, 2, "always"), (1, 8, "on_demand")),
        config((1, 3, "always")),
    ]
    assert thread_budget(models, cores=4.0) == ThreadBudget(threads=4, cores=4.0)


@pytest.mark.parametrize(
    ("threads", "cores", "warns"),
    [(2, 2.0, False), (3, 2.0, True), (2, 1.5, False), (3, 1.5, True), (0, 1.0, False)],
)
def test_more_threads_than_cores_are_warned_of(threads: int, cores: float, warns: bool) -> None:
    """A fraction of a core counts as a whole one: with 1.5 cores two threads are no mistake."""
    assert (ThreadBudget(threads=threads, cores=cores).warning is not None) == warns


def test_only_absurd_configurations_are_refused() -> None:
    """64 threads pass on any machine; beyond that 16 threads a core is the limit."""
    check_threads("m", config((64, 1, "always")), cores=1.0)
    check_threads("m", config((64, 2, "always")), cores=8.0)
    with pytest.raises(ConfigError, match="128 threads on 4 cores, limit 64"):
        check_threads("m", config((64, 2, "always")), cores=4.0)
