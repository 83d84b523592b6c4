"""Publishes folders of PaddleX: a program, its weights and the file that describes its use."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paddlepool.cli.shared import quiet_children
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.sentences import printable
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.making.export.publish import next_version, published_version, staged_version
from paddlepool.making.export.seal import Sealed, seal
from paddlepool.making.export.sealed_groups import Usage
from paddlepool.making.export.unpack import opened_source
from paddlepool.making.export.version_folder import PARAMS, PROGRAMS, read_folder
from paddlepool.models.repository.config import MODEL_NAME
from paddlepool.models.repository.files import write_atomically
from paddlepool.models.repository.manifest import ONNX_SUFFIX, read_contents
from paddlepool.models.repository.selftest import shapes_of
from paddlepool.tasks.transforms.config import (
    FILE,
    BoxesFromMap,
    InferenceConfig,
    LabelMap,
    RecResizeImg,
    TextFromClasses,
    TopK,
    read_inference_config,
)
from paddlepool.tasks.transforms.samples import sample_pictures
from paddlepool.tasks.transforms.stages import prepare

TASKS: Mapping[type, tuple[str | None, str]] = {
    TopK: ("classify", "labels of a picture"),
    LabelMap: ("segment", "a label for each pixel"),
    BoxesFromMap: (None, "finds lines of text"),
    TextFromClasses: (None, "reads a line of text"),
}
"""The task of a model and what it does, by the operation after it. Parts have no task."""
LICENCE = re.compile(r"---\n(?:.*\n)*?license: *([A-Za-z0-9.+ -]{1,60})\n(?:.*\n)*?---\n")
LABELS = 4
"""Labels that are printed."""
WIDER = 2
ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A published version, and the lines that say what was understood of the model."""

    name: str
    kind: type
    lines: Sequence[tuple[str, str]]


def model_folders(root: Path) -> list[Path]:
    """Return the folders below `root` with an `inference.yml`; hidden ones such as `.cache` are not
    searched. Raises ConfigError if there is none.
    """
    files = sorted(root.rglob(FILE))
    folders = [
        path.parent
        for path in files
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not folders:
        raise ConfigError(
            f"{root} holds no {FILE}, which PaddleX writes beside a program; without it, copy the "
            "program to MODEL/VERSION and run `paddlepool models seal` (docs/sealing.md)"
        )
    return folders


def model_name(config: InferenceConfig, folder: Path) -> str:
    """Return the model's name in a repository: in lower case, with hyphens. Raises ConfigError."""
    name = (config.model_name or folder.name).lower().replace("_", "-").replace(".", "-")
    if not MODEL_NAME.fullmatch(name):
        raise ConfigError(
            f"{FILE}: Global.model_name {printable(name[:100])} is no name of a model; --name "
            "chooses one"
        )
    return name


def import_folder(
    folder: Path, repository: Path, *, name: str | None = None, source: str = "", licence: str = ""
) -> Imported:
    """Publish the model of a folder with `inference.yml` as the next version of its model.

    It is sealed in a temporary directory, on real pictures, at the shapes that the file names. If a
    version already has these weights, nothing is published. Raises ConfigError for a file or name
    that cannot be used, and the errors of seal().
    """
    config = read_inference_config((folder / FILE).read_text("utf-8"))
    name = name or model_name(config, folder)
    model = repository / name
    with TemporaryDirectory() as scratch:
        directory = Path(scratch) / name / "1"
        directory.mkdir(parents=True)
        for path in _candidates(folder):
            shutil.copyfile(path, directory / path.name)
        program = read_folder(directory)
        used = {program.program, program.params, program.onnx, FILE}
        for path in directory.iterdir():
            if path.name not in used:
                path.unlink()
        if (own := model / "config.toml").is_file():
            shutil.copyfile(own, directory.parent / "config.toml")
        pictures = sample_pictures(config)
        tensors = [prepare(picture, config.as_meta()).tensor for _, picture in pictures]
        usage = Usage(
            pipeline=TASKS[type(config.postprocess)][0],
            # A batch of pages takes as long as its pages one by one.
            max_batch_size=ROWS if isinstance(config.postprocess, TopK | TextFromClasses) else 1,
            warmup=list(dict.fromkeys(_realistic_shapes(config, [t.shape for t in tensors]))),
        )
        sealed = seal(
            directory,
            open_predictor=ProcessBackend(),
            real_inputs=tensors,
            usage=usage,
            source=source,
            licence=licence or stated_licence(folder),
        )
        manifest = read_contents(directory)
        if place := published_version(model, str(manifest.weights["sha256"])):
            head = f"{place} has these weights already"
        else:
            place = _publish(directory, model, sealed.config)
            head = f"published {place}"
    return Imported(
        name=name,
        kind=type(config.postprocess),
        lines=[(name, head), *_facts(config, sealed, list(manifest.files))],
    )


def _publish(directory: Path, model: Path, config: str) -> Path:
    """Copy a sealed version to the repository, with a new config.toml, and return its directory."""
    number = next_version(model)
    with staged_version(model, number) as staged:
        for path in directory.iterdir():
            shutil.copyfile(path, staged / path.name)
        if config:
            write_atomically(model / "config.toml", config.encode())
    return model / str(number)


def _facts(
    config: InferenceConfig, sealed: Sealed, files: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what was understood of a model, and how it was sealed."""
    after = config.postprocess
    task, purpose = TASKS[type(after)]
    yield "task", f"{task or 'none: a part of another model'}: {purpose}"
    for spec in sealed.inputs:
        sizes = " × ".join("any" if size == -1 else str(size) for size in spec.shape)
        yield "input", f"{spec.name} {spec.dtype} {sizes}"
    yield "operations", ", ".join(step.name for step in config.operations)
    if isinstance(after, TopK) and after.label_list:
        yield "labels", _counted(after.label_list)
    if isinstance(after, TextFromClasses):
        yield "characters", str(len(after.character_dict))
    yield (
        "sealed on",
        ", ".join(
            f"{name} as {shapes_of(case.inputs)}"
            for (name, _), case in zip(
                sample_pictures(config), sealed.trial.selftest.cases, strict=False
            )
        ),
    )
    yield "groups", ", ".join(group.name for group in sealed.groups if not group.refusal)
    for group in sealed.groups:
        if group.refusal:
            yield "left out", f"{group.name}: {group.refusal}"
    yield "files", ", ".join(files)


def _counted(labels: Sequence[str]) -> str:
    few = ", ".join(printable(label[:40]) for label in labels[:LABELS])
    return f"{len(labels)}: {few}{', …' if len(labels) > LABELS else ''}"


def stated_licence(folder: Path) -> str:
    """Return the licence that the head of a README.md names, as hubs write it, else nothing."""
    try:
        text = (folder / "README.md").read_text("utf-8")
    except (OSError, ValueError):
        return ""
    match = LICENCE.match(text)
    return match[1] if match else ""


def _candidates(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and (
            path.name == FILE or path.suffix in (*PROGRAMS, PARAMS, ONNX_SUFFIX)
        ):
            yield path


def _realistic_shapes(
    config: InferenceConfig, shapes: Sequence[tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the samples; for a recogniser, those of a few lines."""
    line = next(
        (s.parameters for s in config.operations if isinstance(s.parameters, RecResizeImg)), None
    )
    if line is None:
        yield from shapes
        return
    channels, height, width = line.image_shape
    yield (1, channels, height, width)
    yield (1, channels, height, WIDER * width)
    yield (ROWS, channels, height, width)


def import_source(
    source: str,
    repository: Path,
    *,
    name: str | None = None,
    sha256: str = "",
    timeout: float,
    text: str = "",
    licence: str = "",
) -> Iterator[Sequence[tuple[str, str]]]:
    """Publish every model of a source, and yield what was understood of each.

    See opened_source() for what a source is, and import_folder(). `text` describes the source in
    manifests. Raises their errors, and ConfigError for a `name` with several models.
    """
    with opened_source(source, sha256=sha256, timeout=timeout) as opened:
        folders = model_folders(opened.root)
        if name is not None and len(folders) > 1:
            raise ConfigError(f"--name is for one model; {source} holds {len(folders)}")
        if opened.sha256:
            yield [("source", source), ("sha256", opened.sha256)]
            text = text or f"{source}, sha256 {opened.sha256}"
        imported = {}
        for folder in folders:
            with quiet_children():
                model = import_folder(folder, repository, name=name, source=text, licence=licence)
            imported[model.kind] = model.name
            yield model.lines
        yield [("next", f"paddlepool serve --model-repository {repository}")]
