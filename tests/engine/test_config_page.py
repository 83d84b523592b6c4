"""docs/model-repository.md knows every key of config.toml, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from app.engine.config import DynamicBatching, InstanceGroup, ModelConfig, VersionPolicy, Warmup

PAGE = Path(__file__).parents[2] / "docs" / "model-repository.md"
TABLES = {
    "version_policy": VersionPolicy,
    "dynamic_batching": DynamicBatching,
    "instance_group": InstanceGroup,
    "warmup": Warmup,
}


def test_every_key_is_documented() -> None:
    """One row may have several keys of the same table."""
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text("utf-8"), re.M)
    named: set[str] = set()
    for row in rows:
        table = ""
        for cell in re.findall(r"`([^`]+)`", row):
            head, _, key = cell.rpartition(" ")
            table = head.strip("[]") or table
            named.add(f"{table}.{key}" if table else key.strip("[]"))
    expected = {name for name in ModelConfig.model_fields if name not in TABLES}
    for table, model in TABLES.items():
        expected |= {f"{table}.{name}" for name in model.model_fields}
    assert expected == named
