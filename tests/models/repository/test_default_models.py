"""Which model answers a task: chosen by the operator, by config.toml, or the first by name."""

from pathlib import Path

import pytest

from paddlepool.models.repository.config import InstanceGroup, ModelConfig
from paddlepool.models.repository.layout import ModelRepository, find_default_models, read_configs
from tests.model_files import write_config


def config(pipeline: str | None, *, default: bool = False) -> ModelConfig:
    group = InstanceGroup(name="one", backend="fake")
    return ModelConfig(
        pipeline=pipeline, default=default, default_group="one", instance_group=(group,)
    )


def test_the_first_model_by_name_is_a_task_s_default() -> None:
    """Tasks that no model names, and models without a task, have none."""
    configs = {"b": config("segment"), "a": config("segment"), "c": config(None)}
    assert find_default_models(configs, ["segment", "sentiment"], chosen={}) == {"segment": "a"}


def test_a_model_can_say_that_it_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    """One that is added keeps its hands off the task, whatever it is called; doubt is logged."""
    chosen = {"a": config("segment"), "b": config("segment", default=True)}
    assert find_default_models(chosen, ["segment"], chosen={}) == {"segment": "b"}
    assert not caplog.messages
    doubtful = {"a": config("segment"), "b": config("segment")}
    assert find_default_models(doubtful, ["segment"], chosen={}) == {"segment": "a"}
    [line] = caplog.messages
    assert line == (
        "2 models of the task segment and none has default = true; "
        "'a' answers requests that name none"
    )


def test_a_broken_configuration_is_passed_over(tmp_path: Path) -> None:
    """The registry reports it; the others are known all the same."""
    write_config(tmp_path / "good", "")
    write_config(tmp_path / "bad", "nonsense = true")
    assert set(read_configs(ModelRepository(tmp_path))) == {"good"}


@pytest.mark.parametrize("model", ["u2netq", "e"], ids=["no such model", "another task's"])
def test_a_model_may_come_later(caplog: pytest.LogCaptureFixture, model: str) -> None:
    """The choice stands, and is logged: a typing error would be noticed by nobody otherwise."""
    configs = {"s": config("segment"), "e": config("sentiment")}
    found = find_default_models(configs, ["segment", "sentiment"], chosen={"segment": model})
    assert found == {"segment": model, "sentiment": "e"}
    [line] = caplog.messages
    assert f"DEFAULT_MODELS: the repository has no model {model!r}" in line
