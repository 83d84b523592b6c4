"""The model repository on disk: models, versions and default models. Its files are not trusted."""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paddlepool.contracts.errors import ConfigError, ManifestError, ModelNotFound, PaddlepoolError
from paddlepool.contracts.ports import Agreement, PredictorSpec, ServedModelInfo
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.models.repository.config import MODEL_NAME, InstanceGroup, ModelConfig, load_config
from paddlepool.models.repository.files import FAULTS
from paddlepool.models.repository.manifest import (
    MANIFEST,
    ComposedManifest,
    Manifest,
    read_composed_manifest,
    read_contents,
    read_manifest,
    verify_files,
    verify_listed,
)
from paddlepool.models.repository.selftest import SELFTEST, SelfTest, read_selftest

VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """One version of a model with a program, read and verified against its manifest."""

    name: str
    version: int
    directory: Path
    config: ModelConfig
    manifest: Manifest

    def group(self, name: str | None) -> InstanceGroup:
        """Return a group by name, the default group for None. Raises ConfigError if unknown."""
        names = [group.name for group in self.config.instance_group]
        if name not in (None, *names):
            raise ConfigError(
                f"{self.name} has no instance group {name!r}, it has {', '.join(names)}"
            )
        return self.config.group(name or self.config.default_group)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs as they are served. Raises ConfigError; see named_outputs()."""
        return named_outputs(self.manifest.outputs, self.config)

    @property
    def batched(self) -> bool:
        """Whether the first axis of every tensor is the batch axis."""
        tensors = (*self.manifest.inputs, *self.manifest.outputs)
        free = all(spec.shape[:1] == (-1,) for spec in tensors)
        return self.config.dynamic_batching.max_batch_size > 0 and free

    @property
    def max_rows(self) -> int:
        """Maximum rows of a job and of a batch; 1 if the version is not batched."""
        return self.config.dynamic_batching.max_batch_size if self.batched else 1

    def selftest(self, agreement: Agreement | None = None) -> SelfTest:
        """Read the version's self-test and add the task's `agreement`. Raises ManifestError.

        Its outputs have the names under which they are served.
        """
        test = read_selftest(self.directory, self.manifest.inputs, self.manifest.outputs)
        return replace(test.with_outputs(self.config.outputs), agreement=agreement)

    def verify_again(self, *, low_priority: bool = False) -> None:
        """Raise ManifestError if a file of this version no longer matches `manifest`.

        Raises OSError if the system does not let the server read a file.
        """
        label = f"{self.name}/{self.version}"
        with _faults_of_system():
            verify_listed(self.directory, self.manifest, label=label, low_priority=low_priority)

    def spec(self, group: InstanceGroup) -> PredictorSpec:
        """Return the specification with which a backend opens `group`.

        Its `format` is None if the manifest does not list the group's program.
        """
        program = self.manifest.program_for(group.backend, group.program)
        return PredictorSpec(
            directory=self.directory,
            program=(program or self.manifest).program,
            params=(program or self.manifest).params,
            program_name=group.program,
            format=program.format if program else None,
            inputs=self.manifest.inputs,
            outputs=self.outputs,
            backend=group.backend,
            threads=group.threads,
            options=group.options,
            network=self.manifest.network,
            batched=self.batched,
        )

    def info(self) -> ServedModelInfo:
        """Return the part of this version's data that its pipeline may use."""
        return ServedModelInfo(
            name=self.name,
            version=self.version,
            directory=self.directory,
            inputs=self.manifest.inputs,
            outputs=self.outputs,
            max_rows=self.max_rows,
            parameters=self.config.parameters,
            pipeline=self.config.pipeline,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedFiles:
    """One version of a composed model, read and verified against its manifest."""

    name: str
    version: int
    directory: Path
    config: ModelConfig
    manifest: ComposedManifest

    def info(self, parts: Mapping[str, ServedModelInfo]) -> ServedModelInfo:
        """Return the data that the pipeline may use; `parts` has the data of each part."""
        return ServedModelInfo(
            name=self.name,
            version=self.version,
            directory=self.directory,
            inputs=(),
            outputs=(),
            parameters=self.config.parameters,
            pipeline=self.config.pipeline,
            parts=parts,
        )


def named_outputs(outputs: Sequence[TensorSpec], config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return a program's outputs with the names that config.toml gives them.

    Raises ConfigError if config.toml names an unknown output or two outputs get the same name.
    """
    names = [spec.name for spec in outputs]
    if unknown := sorted(set(config.outputs) - set(names)):
        raise ConfigError(
            f"config.toml names the output {unknown[0]!r}, the program has {', '.join(names)}"
        )
    served = [config.outputs.get(name, name) for name in names]
    if len(set(served)) != len(served):
        raise ConfigError(f"config.toml gives two outputs the same name: {', '.join(served)}")
    return tuple(replace(spec, name=name) for spec, name in zip(outputs, served, strict=True))


class ModelRepository:
    """Directories `<root>/<name>/<version>/`. **Invariant**: nothing outside `root` is opened.

    Only plain directories count: links, versions with leading zeros, staging directories and all
    other entries are ignored. A version exists once its manifest is written, which comes last.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> tuple[str, ...]:
        """Return the names of all models, sorted. Raises ConfigError if `root` cannot be read."""
        try:
            # Take the type of an entry from its parent directory: a model must be listed even if
            # its own directory cannot be read at the moment.
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise ConfigError(
                f"the model repository cannot be read: {self.root}: {error.strerror or error}"
            ) from error
        return tuple(sorted(filter(MODEL_NAME.fullmatch, names)))

    def composed_names(self) -> frozenset[str]:
        """Return the names of the composed models whose configuration can be read.

        Raises ConfigError if `root` cannot be read.
        """
        composed = set()
        for name in self.names():
            with contextlib.suppress(PaddlepoolError, OSError):  # loading it gives the reason
                if self.config(name).parts:
                    composed.add(name)
        return frozenset(composed)

    def judged_with(self, name: str) -> str | None:
        """Return the composed model with the policy "canary" and the part `name`, or None.

        If there are several, the first by name. Models whose configuration cannot be read are left
        out. Raises ConfigError if `root` cannot be read.
        """
        for other in self.names():
            with contextlib.suppress(PaddlepoolError, OSError):  # loading it gives the reason
                config = self.config(other)
                if name in config.parts.values() and config.version_policy.kind == "canary":
                    return other
        return None

    def versions(self, name: str) -> tuple[int, ...]:
        """Return published versions, newest first.

        Raises ModelNotFound, and OSError if the model's directory cannot be read.
        """
        return self._numbered(name, sealed=True)

    def unsealed(self, name: str) -> tuple[int, ...]:
        """Return versions without a manifest: still being copied, or never sealed.

        Raises as versions() does.
        """
        return self._numbered(name, sealed=False)

    def _numbered(self, name: str, *, sealed: bool) -> tuple[int, ...]:
        directory = self._model_directory(name)
        return tuple(
            version
            for version in version_numbers(directory)
            if _is_directory(directory / str(version))
            and _exists(directory / str(version) / MANIFEST) == sealed
        )

    def config(self, name: str) -> ModelConfig:
        """Read the model's config.toml. Raises ModelNotFound, ConfigError and OSError."""
        return load_config(self._model_directory(name) / "config.toml")

    def fingerprint(self, name: str, version: int) -> str:
        """Return the sha256() of a version's manifest, without reading the other files.

        Raises ModelNotFound, ManifestError and OSError.
        """
        directory, _ = self._version(name, version)
        with _faults_of_system():
            return read_contents(directory).sha256()

    def read(self, name: str, version: int, *, low_priority: bool = False) -> ModelFiles:
        """Read and verify one version; with `low_priority`, using a quarter of a core.

        Raises ModelNotFound, ConfigError (also for a composed model), ManifestError, and OSError if
        the system does not let the server read a file.
        """
        directory, config = self._version(name, version)
        if config.parts:
            raise ConfigError(
                f"{name} is composed of {', '.join(config.parts.values())}, and has no program"
            )
        with _faults_of_system():
            manifest = read_manifest(directory)
            verify_files(directory, manifest, low_priority=low_priority)
        if SELFTEST not in manifest.files:
            raise ManifestError(f"{name}/{version}: {SELFTEST} is not listed in files")
        named_outputs(manifest.outputs, config)
        return ModelFiles(
            name=name, version=version, directory=directory, config=config, manifest=manifest
        )

    def read_composed(self, name: str, version: int) -> ComposedFiles:
        """Read and verify one version of a composed model.

        Raises ModelNotFound, ConfigError, ManifestError and OSError.
        """
        directory, config = self._version(name, version)
        with _faults_of_system():
            manifest = read_composed_manifest(directory)
            verify_files(directory, manifest)
        return ComposedFiles(
            name=name, version=version, directory=directory, config=config, manifest=manifest
        )

    def _version(self, name: str, version: int) -> tuple[Path, ModelConfig]:
        """Return a version's directory and its model's configuration.

        Raises ModelNotFound and the errors of load_config().
        """
        model = self._model_directory(name)
        directory = model / str(version)
        if not VERSION.fullmatch(str(version)) or not _is_directory(directory):
            raise ModelNotFound(f"model {name!r} has no version {version}", received=version)
        return directory, load_config(model / "config.toml")

    def _model_directory(self, name: str) -> Path:
        directory = self.root / name if MODEL_NAME.fullmatch(name) else None
        if directory is None or not _is_directory(directory):
            raise ModelNotFound("no model of this name is in the repository")
        return directory


@contextlib.contextmanager
def _faults_of_system() -> Iterator[None]:
    """Replace a ManifestError by the OSError that caused it, if its errno is not in FAULTS.

    Errors in FAULTS are faults of the model's files. Others come from the system and may pass.
    """
    try:
        yield
    except ManifestError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in FAULTS:
            raise cause from None
        raise


def version_numbers(model: Path) -> list[int]:
    """Return the version numbers in a model's directory, highest first, published or not.

    The list is empty if there is no such directory.
    """
    names = [path.name for path in model.iterdir()] if model.is_dir() else []
    return sorted((int(name) for name in names if VERSION.fullmatch(name)), reverse=True)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _exists(path: Path) -> bool:
    """Return what os.path.lexists() returns, but raise OSError if that cannot be determined."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


VARIABLE = "PADDLEPOOL_DEFAULT_MODELS"

log = logging.getLogger("paddlepool.server")


def read_configs(repository: ModelRepository) -> dict[str, ModelConfig]:
    """Read the configuration of every model that has a valid one; the registry reports the others.

    Raises ConfigError if the repository cannot be read, and OSError if a config.toml cannot.
    """
    configs = {}
    for name in repository.names():
        with contextlib.suppress(PaddlepoolError):
            configs[name] = repository.config(name)
    return configs


def find_default_models(
    configs: Mapping[str, ModelConfig], tasks: Iterable[str], *, chosen: Mapping[str, str]
) -> dict[str, str]:
    """Return the default model of each task that has a model or is in `chosen`.

    That is the task's model in `chosen`, else the first by name with `default = true`, else the
    first by name. Logs a warning if several models qualify, or if a model in `chosen` is missing or
    has another task.

    A model whose files are damaged still counts, if its config.toml is valid. Raises ConfigError if
    `chosen` names an unknown task; an unknown model is accepted, because it may be published later.
    """
    known = sorted(tasks)
    for task, model in chosen.items():
        if task not in known:
            raise ConfigError(
                f"{VARIABLE}: there is no task {task!r}, there are {', '.join(known)}"
            )
        if model not in configs or configs[model].pipeline != task:
            log.warning(
                "%s: the repository has no model %r for the task %s yet", VARIABLE, model, task
            )
    defaults = {}
    for task in (task for task in known if task not in chosen):
        names = [name for name in sorted(configs) if configs[name].pipeline == task]
        marked = [name for name in names if configs[name].default]
        candidates = marked or names
        if len(candidates) > 1:
            log.warning(
                "%s models of the task %s %s; %r answers requests that name none",
                len(candidates),
                task,
                "have default = true" if marked else "and none has default = true",
                candidates[0],
            )
        if candidates:
            defaults[task] = candidates[0]
    return defaults | dict(chosen)
