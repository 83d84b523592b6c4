"""A tuned group written into config.toml, everything else of the file left as it stands."""

from __future__ import annotations

from pathlib import Path

from app.comparison.tuning import Candidate
from app.contracts.errors import ConfigError
from app.repository.config import load_config


def write_group(path: Path, candidate: Candidate, *, lengths: dict[str, tuple[int, ...]]) -> None:
    """Set the default group's count and threads, the batch size and, for texts, the buckets.

    `lengths` are the warm-up shapes' inputs with the bucket left out: name to leading sizes.
    Raises ConfigError without tomlkit, without the file, or when it has no such group.
    """
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing config.toml needs the package tomlkit (extra compare)"
        ) from error
    config = load_config(path)
    try:
        document = tomlkit.parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.parent.name} has no config.toml to write to") from error
    for group in document.get("instance_group", []):
        if group["name"] == config.default_group:
            group["count"], group["threads"] = candidate.count, candidate.threads
            break
    else:
        raise ConfigError(f"{path.parent.name}/config.toml lists no group {config.default_group!r}")
    document.setdefault("dynamic_batching", tomlkit.table())["max_batch_size"] = candidate.batch
    if candidate.buckets and candidate.buckets != tuple(config.parameters.get("buckets", ())):
        document["parameters"]["buckets"] = list(candidate.buckets)
        warmups = tomlkit.aot()
        for bucket in candidate.buckets:
            shapes = tomlkit.inline_table()
            shapes.update({name: [*leading, bucket] for name, leading in lengths.items()})
            table = tomlkit.table()
            table["shapes"] = shapes
            warmups.append(table)
        document["warmup"] = warmups
    staged = path.with_name(".config.toml.new")
    staged.write_text(tomlkit.dumps(document), "utf-8")
    load_config(staged)
    staged.replace(path)
