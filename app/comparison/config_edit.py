"""A tuned or chosen group written into config.toml, everything else of the file left as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.comparison.tuning import Candidate
from app.contracts.errors import ConfigError
from app.repository.config import AUTO, load_config

if TYPE_CHECKING:
    import tomlkit


def write_group(path: Path, candidate: Candidate, *, lengths: dict[str, tuple[int, ...]]) -> None:
    """Set the default group's count and threads, the batch size and, for texts, the buckets.

    `lengths` are the warm-up shapes' inputs with the bucket left out: name to leading sizes.
    Raises ConfigError without tomlkit, without the file, or when it has no such group.
    """
    config, document = load_config(path), _parsed(path)
    import tomlkit

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
    _write(path, document)


def write_default_group(path: Path, name: str) -> None:
    """Make `name` the group that answers; it starts with the server and the old one on demand.

    The new group gets as many instances as make up the threads that the old one had. Raises
    ConfigError without tomlkit, without the file, or when it has no such group.
    """
    config, document = load_config(path), _parsed(path)
    old = config.default_group
    tables = {str(group["name"]): group for group in document.get("instance_group", [])}
    if name not in tables:
        raise ConfigError(f"{path.parent.name}/config.toml lists no group {name!r}")
    if document.get("default_group") == AUTO:  # a comment behind it would be of that
        document["default_group"].comment("by paddlepool tune; was auto")
    document["default_group"] = name
    chosen = tables[name]
    chosen.pop("start", None)
    if old in tables and old != name:
        budget = config.group(old).count * config.group(old).threads
        chosen["count"] = max(1, budget // config.group(name).threads)
        tables[old]["start"] = "on_demand"
    _write(path, document)


def _parsed(path: Path) -> tomlkit.TOMLDocument:
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing config.toml needs the package tomlkit (extra compare)"
        ) from error
    try:
        return tomlkit.parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.parent.name} has no config.toml to write to") from error


def _write(path: Path, document: tomlkit.TOMLDocument) -> None:
    import tomlkit

    staged = path.with_name(".config.toml.new")
    staged.write_text(tomlkit.dumps(document), "utf-8")
    load_config(staged)
    staged.replace(path)
