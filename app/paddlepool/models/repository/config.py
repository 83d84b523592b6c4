"""Reads and validates config.toml, the configuration of one model."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.resources import available_cores, memory_limit
from paddlepool.contracts.sentences import sentence
from paddlepool.models.repository.files import open_plain_file

Table = TypeVar("Table", bound=BaseModel)
log = logging.getLogger(__name__)
MAX_CONFIG_BYTES = 1 << 20
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
AUTO = "auto"
GroupName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$")]
OutputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}$")]
PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
PartModel = Annotated[str, Field(pattern=f"^{MODEL_NAME.pattern}$")]
QUALITY = re.compile(r"([a-z0-9_]+) (>=|<=) ([0-9]{1,15}(?:\.[0-9]{1,15})?)")
"""Pattern of a condition on a figure of `models verify --quality`, such as `macro_f1 >= 0.72`."""
COMPOSED_KEYS = ("pipeline", "default", "version_policy", "parts", "parameters")
"""The keys of a composed model; the others describe a program, which it does not have."""
SECRET = re.compile("key|token|secret|password")
"""Matches the names of keys whose text may be secret."""
CORES = "cores"
MAX_COUNT = 64
BYTES_OF_A_PROCESS = 1 << 30
"""Memory assumed for a process, to limit processes on a machine with many cores and little memory.
Predictors of the shipped models take a tenth to a half of this."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DynamicBatching(_Table):
    """How jobs of equal shape share a run.

    `max_queue_size` counts jobs per instance. A run waits up to `max_queue_delay_ms` for more
    rows. `max_batch_size` is in rows; a larger job is divided. A `max_batch_size` of 0 means that
    the first axis is not the batch axis: a request may have any size along that axis, and it runs
    alone.
    """

    max_batch_size: int = Field(default=1, ge=0, le=1024)
    max_queue_delay_ms: float = Field(default=0.0, ge=0.0, le=1000.0)
    max_queue_size: int = Field(default=16, ge=1, le=10_000)


class Budget(_Table):
    """Allowed loss of a group with a lower precision, measured on the golden inputs.

    `mean_difference` is an upper limit, `agreement` a lower one. At least one of them is set; None
    means no limit.
    """

    mean_difference: float | None = Field(default=None, gt=0, lt=math.inf)
    agreement: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _limits_something(self) -> Budget:
        if self.mean_difference is None and self.agreement is None:
            raise ValueError("a budget must set mean_difference, agreement or both")
        return self


TOGETHER = 4
"""Maximum processes of one group that run at the same time to choose a default group."""


class InstanceGroup(_Table):
    """One predictor configuration: `count` processes of `threads` threads each.

    In config.toml, `count` may be "cores": it is then what processes_for() returns.
    docs/model-repository.md has all keys.
    """

    name: GroupName
    backend: str
    program: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$")] | None = None
    count: int = Field(default=1, ge=1, le=MAX_COUNT)
    threads: int = Field(default=1, ge=1, le=256)
    start: Literal["always", "on_demand"] = "always"
    base: GroupName | None = None
    tolerance: float | None = Field(default=None, gt=0, lt=math.inf)
    budget: Budget | None = None
    candidate: bool = True
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _resolve_cores_count(cls, table: Any) -> Any:
        if isinstance(table, dict) and table.get("count") == CORES:
            threads = table.get("threads", 1)
            if isinstance(threads, int) and threads > 0:  # else validation rejects it by name
                memory = memory_limit()
                count = processes_for(threads, cores=available_cores(), memory_bytes=memory)
                return table | {"count": count}
        return table

    @model_validator(mode="after")
    def _one_judge(self) -> InstanceGroup:
        if self.tolerance is not None and self.budget is not None:
            raise ValueError("budget replaces tolerance: set only one of them")
        return self


class Warmup(_Table):
    """The input shapes of one warm-up run, by input name; they include the batch axis."""

    shapes: dict[str, tuple[Annotated[int, Field(ge=1)], ...]]


class Ragged(_Table):
    """An input axis that is padded with zeros at its end, to the next multiple of `step`.

    `max` is the largest size, a multiple of `step`. It is required, because backends keep memory
    for each of the `max / step` sizes. Axis 0 is the batch axis and cannot be padded.
    """

    input: str
    axis: int = Field(ge=1)
    step: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _max_is_a_multiple(self) -> Ragged:
        if self.max % self.step:
            raise ValueError(f"max {self.max} is not a multiple of step {self.step}")
        return self


class CanaryPolicy(_Table):
    """When a new version replaces the current one; docs/canary.md explains each key.

    `fraction` is the share of requests that the new version answers before the verdict.
    `agreement` and `slice_agreement` are lower limits from 0 to 1, `slower` is the largest ratio of
    run times, and `within` is in hours.
    """

    fraction: float = Field(default=0.0, ge=0, le=0.5)
    rollback_seconds: float = Field(default=300.0, ge=0, le=86_400)
    requests: int = Field(default=500, ge=20, le=100_000)
    agreement: float = Field(default=0.95, gt=0, lt=1)
    slice_agreement: float = Field(default=0.5, ge=0, lt=1)
    slower: float = Field(default=1.25, gt=0, le=100)
    errors: int = Field(default=0, ge=0, le=100_000)
    within: float = Field(default=24.0, gt=0, le=8760)
    then: Literal["promote", "wait"] = "promote"
    keep_examples: int = Field(default=0, ge=0, le=50)
    quality: tuple[Annotated[str, Field(pattern=f"^{QUALITY.pattern}$")], ...] = ()

    @model_validator(mode="after")
    def _agreement_can_be_proven(self) -> CanaryPolicy:
        enough = math.ceil(math.log(PROMOTION_RISK / 2) / math.log(self.agreement))
        if self.requests < enough:
            raise ValueError(
                f"an agreement of {self.agreement:g} cannot be proven with {self.requests} "
                f"requests, not even if all agree: {enough} are needed"
            )
        return self


PROMOTION_RISK = 0.01
"""Largest probability that a version is promoted although it agrees less than it must."""


class VersionPolicy(CanaryPolicy):
    """Which published versions are served: the `count` latest, all, or the `versions` listed.

    With "canary", one version is served until the newest one has proven itself and replaces it.
    """

    kind: Literal["latest", "all", "specific", "canary"] = "latest"
    count: int = Field(default=1, ge=1, le=64)
    versions: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> VersionPolicy:
        if (self.kind == "specific") != bool(self.versions):
            raise ValueError("versions must be listed with kind = 'specific', and only with it")
        if self.kind != "latest" and "count" in self.model_fields_set:
            raise ValueError("count belongs to kind = 'latest'")
        if self.kind != "canary" and (keys := self.model_fields_set & {*CanaryPolicy.model_fields}):
            raise ValueError(f"{', '.join(sorted(keys))}: only with kind = 'canary'")
        return self

    def choose(
        self, published: Sequence[int], current: int | None = None
    ) -> tuple[tuple[int, ...], int]:
        """Return the versions to try, newest first, and how many of them to serve.

        The first usable ones are served, so an older version replaces a newer one that is unusable.
        `published` are the versions of the repository, newest first, and at least one. With the
        kind "specific", the result may have versions that are not published.

        `current` matters only for "canary": it is the version that serves until another one is
        promoted, None if that is unknown. With None, the versions before the newest are tried,
        because the newest one must first prove itself. Otherwise `current` and older versions are
        tried. If there is no such version, the oldest one is tried.
        """
        if self.kind == "specific":
            listed = tuple(sorted(set(self.versions), reverse=True))
            return listed, len(listed)
        if self.kind == "canary":
            newest = max(published) - 1 if current is None else current
            older = tuple(version for version in published if version <= newest)
            return older or tuple(published[-1:]), 1
        return tuple(published), self.count if self.kind == "latest" else len(published)


class ModelConfig(_Table):
    """The whole of config.toml. `parameters` are for the pipeline.

    `outputs` maps outputs of the program to the names under which they are served. `parts` maps the
    parts of a composed model to the models that serve them; a composed model has no program and no
    instance group. load_config() replaces the `default_group` "auto", unless a group has that name,
    by the name of the first group with start = "always", or of the first group of all.
    """

    pipeline: str | None = None
    default: bool = False
    default_group: GroupName = "onednn"
    version_policy: VersionPolicy = VersionPolicy()
    dynamic_batching: DynamicBatching = DynamicBatching()
    instance_group: tuple[InstanceGroup, ...] = (
        InstanceGroup(name="onednn", backend="paddle_inference", options={"onednn": True}),
    )
    warmup: tuple[Warmup, ...] = ()
    equal_axes: tuple[Annotated[tuple[str, ...], Field(min_length=2)], ...] = ()
    ragged: tuple[Ragged, ...] = ()
    outputs: dict[str, OutputName] = Field(default_factory=dict)
    parts: dict[PartName, PartModel] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)
    _first_group: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _composed_without_groups(cls, tables: Any) -> Any:
        if not (isinstance(tables, dict) and tables.get("parts")):
            return tables
        if surplus := sorted(set(tables) - set(COMPOSED_KEYS)):
            raise ValueError(
                f"a composed model has no {', '.join(surplus)}: these belong to its parts"
            )
        if tables.get("pipeline") is None:
            raise ValueError("a composed model needs a pipeline: the task that uses its parts")
        policy = tables.get("version_policy")
        if isinstance(policy, dict) and "quality" in policy:
            raise ValueError("quality: a new version of a composed model is not measured on data")
        return tables | {"instance_group": ()}

    @model_validator(mode="after")
    def _groups_agree(self) -> ModelConfig:
        if self.parts:
            return self
        names = [group.name for group in self.instance_group]
        if len(set(names)) != len(names):
            raise ValueError(f"instance group names repeat: {names}")
        if self.default and self.pipeline is None:
            raise ValueError("default = true needs a pipeline: it is a task's default model")
        if self.default_group not in (AUTO, *names):
            raise ValueError(f"default_group {self.default_group!r} is not one of {names}")
        if len(set(self.outputs.values())) != len(self.outputs):
            raise ValueError(f"outputs have the same name: {list(self.outputs.values())}")
        for group in self.instance_group:
            if group.base is not None and group.base not in names:
                raise ValueError(f"base {group.base!r} of {group.name!r} is not one of {names}")
            if group.base == group.name:
                raise ValueError(f"group {group.name!r} cannot be its own base")
        return self

    def group(self, name: str) -> InstanceGroup:
        return next(group for group in self.instance_group if group.name == name)

    def lower_precision(self) -> frozenset[str]:
        """Return the names of the groups with a lower precision: those that set a budget."""
        return frozenset(group.name for group in self.instance_group if group.budget is not None)

    @property
    def first_group(self) -> str | None:
        """The group that serves first with "auto"; None if config.toml names the default group."""
        return self._first_group

    def with_first_group(self) -> ModelConfig:
        """Return a copy in which `default_group` is the first group instead of "auto".

        Returns this configuration if `default_group` is not "auto", or if a group has that name.
        """
        if self.default_group != AUTO or any(group.name == AUTO for group in self.instance_group):
            return self
        # The first one that always runs, if there is one.
        first = min(self.instance_group, key=lambda group: group.start != "always").name
        resolved = self.model_copy(update={"default_group": first})
        resolved._first_group = first
        return resolved

    def count_in_place(self, name: str) -> int:
        """Return the number of processes with which a group would replace the default group.

        That is count_of_threads(); 0 if none fits. There is one exception: if the default group has
        at most TOGETHER processes, and fewer of the group fit, but at least one, the group has as
        many as the default group. A single request then uses several cores, and many requests are
        answered as fast as before (decision 55).
        """
        default, count = self.group(self.default_group), self.count_of_threads(name)
        if 0 < count < default.count <= TOGETHER:
            return default.count
        return count

    def count_of_threads(self, name: str) -> int:
        """Return how many processes of a group fit into the total threads of the default group."""
        default = self.group(self.default_group)
        return default.count * default.threads // self.group(name).threads

    @property
    def starts_on_demand(self) -> bool:
        """Whether the default group starts with the first request instead of with the server."""
        return self.group(self.default_group).start == "on_demand"

    def threads(self) -> int:
        """Total threads of the groups that always run, and of the default group.

        If the default group was chosen by measuring, the first group is counted in its place.
        """
        first = self.first_group or self.default_group
        return sum(
            group.count * group.threads
            for group in self.instance_group
            if group.name == first or (group.start == "always" and group.name != self.default_group)
        )

    def served_by(self, name: str, count: int | None = None) -> ModelConfig:
        """Return a copy in which `name` replaces the default group.

        The new default group has `count` processes, by default count_in_place(), or as many as
        config.toml gives it if those are more. Its base is the replaced group, unless config.toml
        names another. Its `start` is that of the replaced group, which starts on demand in the
        copy. Returns this configuration if `name` is the default group.
        """
        if count is None:
            count = self.count_in_place(name)
        default = self.default_group
        if name == default:
            return self
        changes: dict[str, dict[str, Any]] = {
            default: {"start": "on_demand"},
            name: {
                "start": self.group(default).start,
                "count": max(1, count, self.group(name).count),
                "base": self.group(name).base or default,
            },
        }
        groups = tuple(
            group.model_copy(update=changes.get(group.name, {})) for group in self.instance_group
        )
        return self.model_copy(update={"default_group": name, "instance_group": groups})

    def after_first_group(self) -> ModelConfig | None:
        """Return a copy with another first group, for a machine that cannot run the present one.

        The next candidate of full precision, in the order of the file, takes over the threads of
        the first group, which is no candidate in the copy. Returns None if config.toml names the
        default group or no candidate is left.
        """
        if self._first_group is None:
            return None
        names = [group.name for group in self.instance_group]
        for group in self.instance_group[names.index(self._first_group) + 1 :]:
            if group.candidate and group.budget is None:
                following = self.served_by(group.name, self.count_of_threads(group.name))
                groups = {group.name: group for group in following.instance_group}
                first = groups[self._first_group]
                groups[first.name] = first.model_copy(update={"candidate": False})
                following = following.model_copy(update={"instance_group": tuple(groups.values())})
                following._first_group = group.name
                return following
        return None

    def base_of(self, name: str) -> str | None:
        """Return the group that `name` is compared with; None if that would be `name` itself."""
        base = self.group(name).base or self.default_group
        return None if base == name else base


def load_config(path: Path) -> ModelConfig:
    """Read and validate MODEL/config.toml; a missing file means the defaults.

    The file may be a link within the repository: clusters mount configuration as links. Raises
    ConfigError that names each fault, and OSError if the system does not let the server read it.
    """
    label = f"{path.parent.name}/{path.name}"
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(os.path.realpath(path.parent.parent)):
        raise ConfigError(f"{label} is a link out of the model repository")
    try:
        with open_plain_file(target) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError as error:
        if path.is_symlink():  # a broken link does not mean the defaults
            raise ConfigError(f"{label} is a link to a missing file") from error
        return ModelConfig()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP):
            raise
        raise ConfigError(f"{label} is {error.strerror}") from error
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{label} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return parse_config(text, label)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error.message}") from error


def parse_config(text: bytes, label: str = "config.toml") -> ModelConfig:
    """Parse and validate a config.toml for this machine. Raises ConfigError that names each fault.

    The removed key `express_instance` is ignored, with one line in the log for each `label`.
    """
    try:
        tables = tomllib.loads(text.decode())
        batching = tables.get("dynamic_batching")
        if isinstance(batching, dict) and "express_instance" in batching:
            del batching["express_instance"]
            _warn_of_removed_key(label)
        return ModelConfig.model_validate(tables).with_first_group()
    except ValidationError as error:
        raise ConfigError(faults_of(error)) from error
    except RecursionError as error:
        raise ConfigError("it is not TOML: nested too deep") from error
    except ValueError as error:  # wrong encoding, wrong TOML, or a number with too many digits
        raise ConfigError(f"it is not TOML: {error}") from error


@cache  # the file is read again at each poll
def _warn_of_removed_key(label: str) -> None:
    log.warning("%s: [dynamic_batching] express_instance was removed and is ignored", label)


def faults_of(error: ValidationError, *within: str, whole: str = "") -> str:
    """Describe all wrong keys in one line; `within` is the path of their table.

    `whole` names the subject of a fault that has no key, if `within` is empty.
    """
    faults = []
    for fault in error.errors(include_url=False):
        key = ".".join(map(str, (*within, *fault["loc"]))) or whole
        text = f"{fault['msg'].removeprefix('Value error, ')}{_received(key, fault)}"
        if fault["type"] == "extra_forbidden":
            text = "unknown key"
        faults.append(f"{key}: {text}" if key else text)
    return "; ".join(faults)


def _received(key: str, fault: ErrorDetails) -> str:
    """Return a clause with the wrong value, if it is a scalar and has a key.

    Clients may read it: absolute paths become "…", and a text that may be secret is left out.
    """
    value = fault["input"]
    secret = isinstance(value, str) and SECRET.search(key.lower())
    if secret or not (fault["loc"] and isinstance(value, str | int | float)):
        return ""
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    return f", received {sentence(written, longest=80)}"


def processes_for(threads: int, *, cores: float, memory_bytes: int) -> int:
    """Return how many processes of `threads` threads fill the cores.

    The result is at least 1, and at most MAX_COUNT and one for each GiB of memory.
    """
    return max(1, min(math.ceil(cores) // threads, memory_bytes // BYTES_OF_A_PROCESS, MAX_COUNT))


def parse_parameters(info: ServedModelInfo, kind: type[Table]) -> Table:
    """Validate a model's `[parameters]` as `kind`. Raises ConfigError that names each wrong key."""
    try:
        return kind.model_validate(dict(info.parameters))
    except ValidationError as error:
        raise ConfigError(f"{info.name}: {faults_of(error, 'parameters')}") from error
