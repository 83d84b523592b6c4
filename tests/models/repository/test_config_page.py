"""docs/model-repository.md against the configuration that the server reads."""

import re
from pathlib import Path

from pydantic import BaseModel

from paddlepool.engine.backends.paddle_inference import OPTIONS
from paddlepool.models.repository.config import (
    Budget,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    Ragged,
    VersionPolicy,
    Warmup,
)

PAGE = (Path(__file__).parents[3] / "docs" / "model-repository.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_key_of_config_toml_is_documented() -> None:
    tables: dict[str, type[BaseModel]] = {
        "version_policy": VersionPolicy,
        "dynamic_batching": DynamicBatching,
        "[instance_group]": InstanceGroup,
        "instance_group.budget": Budget,
        "[warmup]": Warmup,
        "[ragged]": Ragged,
    }
    keys = {f"[{name}] {key}" for name, table in tables.items() for key in table.model_fields}
    keys -= {"[[instance_group]] options", "[[instance_group]] budget"}
    keys |= set(ModelConfig.model_fields) - {name.strip("[]") for name in tables} - {"parameters"}
    told = set()
    for cell in re.findall(r"^\| (`.*?) \|", section("config.toml"), re.M):
        first, *others = re.findall(r"`([^`]+)`", cell)
        table = first.rpartition(" ")[0]
        told |= {first, *(f"{table} {other}" for other in others)}
    assert told - set(OPTIONS) == keys | {"[parameters]", "[instance_group.options]"}


def test_every_option_of_paddle_inference_is_documented() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*)`? \| ", section("config.toml"), re.M))
    written = {
        name: {True: "true", False: "false"}[value]
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
        for name, value in OPTIONS.items()
    }
    assert {name: rows.get(name) for name in written} == written
