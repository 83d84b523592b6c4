"""Publishes folders of PaddleX: a program, its weights and the file that describes its use."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paddlepool.cli.derive import derive_hint, derive_program
from paddlepool.cli.shared import quiet_children
from paddlepool.contracts.errors import ConfigError, PaddlepoolError
from paddlepool.contracts.sentences import printable
from paddlepool.engine.backends.converted import converted_once
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.making.export.best_class import reduce_to_best_class
from paddlepool.making.export.publish import (
    next_version,
    published_version,
    sha256_of,
    staged_version,
    template,
)
from paddlepool.making.export.seal import Sealed, seal
from paddlepool.making.export.sealed_groups import Usage
from paddlepool.making.export.unpack import opened_source
from paddlepool.making.export.version_folder import PARAMS, PROGRAMS, read_folder
from paddlepool.making.programs.derive import INT8
from paddlepool.making.programs.shipped import shipped_ranges
from paddlepool.models.repository.config import MODEL_NAME
from paddlepool.models.repository.files import write_atomically
from paddlepool.models.repository.manifest import ONNX_SUFFIX, read_manifest
from paddlepool.models.repository.selftest import shapes_of
from paddlepool.tasks.codecs.encode import encode
from paddlepool.tasks.task import agreement_of, load_tasks
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
from paddlepool.tasks.transforms.samples import PAGES, Sample, page, sample_pictures
from paddlepool.tasks.transforms.stages import prepare

TASKS: Mapping[type, tuple[str | None, str]] = {
    TopK: ("classify", "labels of a picture"),
    LabelMap: ("segment", "a label for each pixel"),
    BoxesFromMap: (None, "finds lines of text"),
    TextFromClasses: (None, "reads a line of text"),
}
"""The task of a model and what it does, by the operation that follows it in `inference.yml`. The
parts of a composed model have no task."""
OCR = "ocr"
"""The composed model of a detector and a recogniser, and its task."""
READ = 60
"""Maximum characters of a page's text that are printed."""
LICENCE = re.compile(r"---\n(?:.*\n)*?license: *([A-Za-z0-9.+ -]{1,60})\n(?:.*\n)*?---\n")
LABELS = 4
"""Maximum labels that are printed."""
WIDER = 2
ROWS = 8
LINES = 64
"""Maximum lines that wait for one process of a recogniser; each line of a page is a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An imported model, with the facts about it for display.

    `kind` is the class of the operation that follows the model in `inference.yml`; None for a
    composed model. `licence` is empty if unknown. Each of the `lines` is a label and a text; the
    first one is the model's name and what was done.
    """

    name: str
    kind: type | None
    licence: str
    lines: Sequence[tuple[str, str]]


def model_folders(root: Path) -> list[Path]:
    """Return the folders that contain an `inference.yml`: `root` and folders below it.

    Hidden folders such as `.cache` are not searched. Raises ConfigError if there is none.
    """
    folders = [
        path.parent
        for path in sorted(root.rglob(FILE))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not folders:
        raise ConfigError(
            f"{root} holds no {FILE}, which PaddleX writes beside a program; without it, copy the "
            "program to MODEL/VERSION and run `paddlepool models seal` (docs/sealing.md)"
        )
    return folders


def model_name(config: InferenceConfig, folder: Path, chosen: str | None = None) -> str:
    """Return the `chosen` name, else the one in `config`, else the folder's.

    A name that was not chosen is changed to lower case with hyphens. Raises ConfigError if no model
    can have the name.
    """
    own = config.model_name or folder.name
    name = chosen or own.lower().replace("_", "-").replace(".", "-")
    if not MODEL_NAME.fullmatch(name):
        raise ConfigError(
            f"{printable(name[:100])} is no name of a model, which is {MODEL_NAME.pattern}; --name "
            "chooses one"
        )
    return name


def import_folder(
    folder: Path, repository: Path, *, name: str | None = None, source: str = "", licence: str = ""
) -> Imported:
    """Publish the program in a folder with `inference.yml` as the next version of its model.

    `name` and `licence` replace those that the folder states. The version is sealed in a temporary
    directory, on sample pictures; a config.toml that the model has is used and stays as it is. The
    program (.json) of a recogniser of text is changed by reduce_to_best_class(). If a version
    already has these weights and this `inference.yml`, nothing is published. If the package has
    ranges for the weights, derive_program() adds the program int8, and a new config.toml gets its
    group, with which `paddlepool derive` can add it later if a package is missing. Raises
    ConfigError for a file or name that cannot be used, and the errors of read_folder(),
    reduce_to_best_class(), prepare(), seal() and staged_version().
    """
    try:
        config = read_inference_config((folder / FILE).read_text("utf-8", errors="replace"))
    except ConfigError as error:
        raise ConfigError(f"{printable(folder.name)}: {error}") from None
    licence = licence or stated_licence(folder)
    name = model_name(config, folder, name)
    kind = type(config.postprocess)
    model = repository / name
    with TemporaryDirectory() as scratch, converted_once() as converted:
        directory = Path(scratch) / name / str(next_version(model))
        directory.mkdir(parents=True)
        for path in _candidates(folder):
            shutil.copyfile(path, directory / path.name)
        program = read_folder(directory)
        used = {program.program, program.params, program.onnx, FILE}
        for path in directory.iterdir():
            if path.name not in used:
                path.unlink()
        weights = directory / (program.params or program.program)
        shipped = shipped_ranges(sha256_of(weights)) is not None
        if place := published_version(model, sha256_of(weights), sha256_of(directory / FILE)):
            head = f"{place} has these weights already"
            if hint := derive_hint(place):
                head += f"; {hint}"
            return Imported(name=name, kind=kind, licence=licence, lines=[(name, head)])
        if kind is TextFromClasses and program.program.endswith(".json"):
            reduce_to_best_class(directory, program.program)
        if (own := model / "config.toml").is_file():
            shutil.copyfile(own, directory.parent / "config.toml")
        pictures = sample_pictures(config)
        tensors = [prepare(picture, config.as_meta()) for _, picture in pictures]
        usage = Usage(
            pipeline=TASKS[kind][0],
            # A run of several pages or lines takes about as long as one run for each, and engines
            # prepare their operators again for each number of rows.
            max_batch_size=ROWS if isinstance(config.postprocess, TopK) else 1,
            max_queue_size=LINES if kind is TextFromClasses else None,
            # A part of `ocr` costs memory only while text is read.
            on_demand=TASKS[kind][0] is None,
            warmup=list(dict.fromkeys(_realistic_shapes(config, [t.shape for t in tensors]))),
        )
        sealed = seal(
            directory,
            open_predictor=ProcessBackend(converted=converted),
            real_inputs=tensors,
            usage=usage,
            agreement_of=agreement_of,
            source=source,
            licence=licence,
        )
        text, derived = sealed.config, []
        if shipped:
            if text:
                text += f"\n{template('shipped')}"
                (directory.parent / "config.toml").write_text(text, "utf-8")
            try:
                derived.append((INT8, derive_program(Path(scratch), name)))
            except PaddlepoolError as error:
                derived.append((INT8, f"left out: {error.message}"))
                text = sealed.config
        manifest = read_manifest(directory)
        head = f"published {_publish(directory, model, text)}"
    facts = _facts(config, sealed, pictures, list(manifest.files), source)
    return Imported(name=name, kind=kind, licence=licence, lines=[(name, head), *facts, *derived])


def _publish(directory: Path, model: Path, config: str) -> Path:
    """Copy a sealed version to the repository; return its directory there.

    `config` is the text of the model's new config.toml; an empty one leaves the file as it is.
    """
    number = next_version(model)
    with staged_version(model, number) as staged:
        for path in directory.iterdir():
            shutil.copyfile(path, staged / path.name)
        if config:
            write_atomically(model / "config.toml", config.encode())
    return model / str(number)


def _facts(
    config: InferenceConfig,
    sealed: Sealed,
    pictures: Sequence[Sample],
    files: Sequence[str],
    source: str,
) -> Iterator[tuple[str, str]]:
    """Yield labels and texts: what a model's files state, and how it was sealed on `pictures`."""
    after = config.postprocess
    if source:
        yield "source", source
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
            for (name, _), case in zip(pictures, sealed.trial.selftest.cases, strict=False)
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
    """Return the `license` in the metadata at the top of a folder's README.md; "" if none."""
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
    """Yield the shapes of inputs to warm up: `shapes`, which are those of the samples.

    For a recogniser of text they are instead a line of the width in `config`, and one of twice that
    width.
    """
    line = next(
        (s.parameters for s in config.operations if isinstance(s.parameters, RecResizeImg)), None
    )
    if line is None:
        yield from shapes
        return
    channels, height, width = line.image_shape
    yield (1, channels, height, width)
    yield (1, channels, height, WIDER * width)


def import_source(
    source: str,
    repository: Path,
    *,
    name: str | None = None,
    sha256: str = "",
    timeout: float,
    text: str = "",
    licence: str = "",
) -> Iterator[Imported]:
    """Publish every model of a source, and yield an Imported for each.

    opened_source() says what a source is. `text` describes it in manifests. A detector and a
    recogniser of text become the parts of a composed model: see compose_ocr(). Raises the errors of
    opened_source(), model_folders(), import_folder() and compose_ocr(), and ConfigError for a
    `name` with several models. If one of several models cannot be published, the others are, and a
    ConfigError at the end names each that was not.
    """
    models, failures = [], []
    with opened_source(source, sha256=sha256, timeout=timeout) as opened:
        folders = model_folders(opened.root)
        if name is not None and len(folders) > 1:
            raise ConfigError(f"--name is for one model; {source} holds {len(folders)}")
        origin = f"{text or source}, sha256 {opened.sha256}" if opened.sha256 else text
        for folder in folders:
            try:
                with quiet_children():
                    model = import_folder(
                        folder, repository, name=name, source=origin, licence=licence
                    )
            except PaddlepoolError as error:
                if len(folders) == 1:
                    raise
                failures.append(f"\n  {printable(str(folder.relative_to(opened.root)))}: {error}")
                continue
            models.append(model)
            yield model
    if models and (
        composed := compose_ocr(models, repository, source=origin, licence=models[0].licence)
    ):
        yield composed
    if failures:
        raise ConfigError(
            f"{len(failures)} of {len(folders)} models were not published:{''.join(failures)}"
        )


def compose_ocr(
    models: Sequence[Imported], repository: Path, *, source: str, licence: str
) -> Imported | None:
    """Publish the model `ocr`, composed of a detector and a recogniser among `models`.

    Returns None if one of them or the task `ocr` is missing, or the repository has a model `ocr`
    already. Raises the errors of seal_composed(); nothing is published then.
    """
    tasks, kinds = load_tasks(), {model.kind: model.name for model in models}
    model = repository / OCR
    needed = (BoxesFromMap, TextFromClasses)
    if OCR not in tasks or model.exists() or not all(kind in kinds for kind in needed):
        return None
    from paddlepool.cli.composed import seal_composed  # imports the server

    parts = dict(zip(tasks[OCR].parts, (kinds[kind] for kind in needed), strict=True))
    text = f'pipeline = "{OCR}"\n\n[parts]\n'
    text += "".join(f'{part} = "{name}"\n' for part, name in parts.items())
    with ExitStack() as incomplete:
        incomplete.callback(shutil.rmtree, model, ignore_errors=True)
        (model / "1").mkdir(parents=True)
        (model / "config.toml").write_text(text, "utf-8")
        (model / "1" / "page.png").write_bytes(encode(page(*PAGES[0]), format="png").tobytes())
        with quiet_children():
            answer = seal_composed(model / "1", source=source, licence=licence)
        incomplete.pop_all()
    read = " ".join(str(line["text"]) for line in answer)
    return Imported(
        name=OCR,
        kind=None,
        licence=licence,
        lines=[
            (OCR, f"published {model / '1'}"),
            ("task", f"{OCR}: reads the lines of a picture"),
            ("parts", ", ".join(f"{part} {name}" for part, name in parts.items())),
            ("sealed on", f"a page of {len(answer)} lines: {printable(read[:READ])}…"),
        ],
    )
