"""Parses manifest.json of a model version, and compares the files it lists by their sha256."""

import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from paddlepool.contracts.errors import ManifestError
from paddlepool.contracts.tensors import DTYPES, TensorSpec
from paddlepool.models.repository.config import faults_of
from paddlepool.models.repository.files import open_plain_file

MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 1 << 20
ONNX_SUFFIX = ".onnx"
PICKLED = ".info"
"""Suffix of a pickle that Paddle 2 wrote next to a program."""
DOCUMENT = re.compile(r"(README|LICEN[CS]E|NOTICE|COPYING)(\.[a-z]+)?|.+\.md", re.IGNORECASE)
OWN_ONNX = "onnx"
"""Name of an ONNX program that a version brings beside its Paddle program."""
ONNX_BACKENDS = ("onnxruntime", "openvino")
"""Backends that run ONNX programs and convert a Paddle program while they open it."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
FileName = Annotated[str, Field(pattern=f"^{FILE_NAME.pattern}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ProgramName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$")]
Format = Literal["paddle", "onnx"]
COMPOSED_FORMAT: Final = 3
Figure = Annotated[float, Field(allow_inf_nan=False)]


class Strict:
    """Base of all tables of the manifest: unknown keys are errors."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class FileEntry(Strict):
    """Exact size and digest of one file."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation(Strict):
    """How a program was made from the reference, and which layers stayed in floating point."""

    tool: str
    versions: dict[str, str]
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)
    float_layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Strict):
    """The data on which the ranges of activations were measured, to quantize a program.

    `sha256` is computed from the files' own digests, whatever their names and order.
    """

    data: str
    count: Annotated[int, Field(ge=1)]
    sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoss(Strict):
    """Loss of a program against the reference, as figures by name, on `count` items of `data`."""

    data: str
    count: Annotated[int, Field(ge=1)]
    figures: dict[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The files of one program and their format; `name` is None for the reference program."""

    name: str | None
    format: Format
    program: FileName
    params: FileName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedProgram(Program, Strict):
    """Another program that computes the function of the reference, with equal inputs and outputs.

    `quality` is its loss against the reference.
    """

    name: ProgramName
    derivation: Derivation
    calibration: Calibration | None = None
    quality: tuple[MeasuredLoss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Strict):
    """The files of a version, with their origin."""

    files: dict[FileName, FileEntry]
    weights: dict[str, str | bool]
    built_with: dict[str, str]

    def sha256(self) -> str:
        """Return a fingerprint of the version, made from the names and digests of its files."""
        lines = (f"{entry.sha256}  {name}\n" for name, entry in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedManifest(Contents):
    """Contents of a version of a composed model: one request, and the answer that it must get."""

    format: Literal[3] = COMPOSED_FORMAT
    sample: FileName
    answer: FileName


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Contents):
    """Contents and origin of a version; inputs and outputs are in the order of the program.

    Only format 2 may have `programs` or a reference program in ONNX. `params` is null if no file
    has the parameters. `network` describes the dynamic graph, null if it is not known.
    """

    format: Literal[1, 2]
    program: FileName
    params: FileName | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    network: dict[str, Any] | None
    programs: tuple[DerivedProgram, ...] = ()

    @property
    def reference(self) -> Program:
        """The program that the other programs are derived from and compared with."""
        form: Format = "onnx" if self.program.endswith(ONNX_SUFFIX) else "paddle"
        return Program(name=None, format=form, program=self.program, params=self.params)

    def find(self, name: str | None) -> Program | None:
        """Return the program `name`, or the reference program if `name` is None.

        Returns None if there is no program of this name.
        """
        if name is None:
            return self.reference
        return next((program for program in self.programs if program.name == name), None)

    def program_for(self, backend: str, name: str | None) -> Program | None:
        """Return the program that a group runs: the one of this name, the reference for None.

        A backend that runs ONNX gets the program OWN_ONNX in place of the reference, if the version
        has one. Returns None if there is no program of this name.
        """
        own = self.find(OWN_ONNX) if name is None and backend in ONNX_BACKENDS else None
        return own or self.find(name)


_PARSER, _COMPOSED_PARSER = TypeAdapter(Manifest), TypeAdapter(ComposedManifest)
AnyManifest = TypeVar("AnyManifest", Manifest, ComposedManifest)


def read_manifest(directory: Path, *, label: str = "") -> Manifest:
    """Parse the manifest of a version with a program. Raises ManifestError with every fault.

    `label` is the version's name in errors; by default, it is made from the directory.
    """
    label = label or f"{directory.parent.name}/{directory.name}"
    return _manifest(_text_of(directory, label), label)


def read_composed_manifest(directory: Path) -> ComposedManifest:
    """Parse the manifest of a composed model's version. Raises ManifestError with every fault."""
    label = f"{directory.parent.name}/{directory.name}"
    return _composed_manifest(_text_of(directory, label), label)


def read_contents(directory: Path, *, label: str = "") -> Manifest | ComposedManifest:
    """Parse the manifest of a version of either kind. Raises ManifestError as read_manifest()."""
    label = label or f"{directory.parent.name}/{directory.name}"
    text = _text_of(directory, label)
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        if json.loads(text)["format"] == COMPOSED_FORMAT:
            return _composed_manifest(text, label)
    return _manifest(text, label)


def _text_of(directory: Path, label: str) -> bytes:
    try:
        with open_plain_file(directory / MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{label}: {MANIFEST} {_reason(error)}") from error
    if len(text) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{label}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    return text


def _manifest(text: bytes, label: str) -> Manifest:
    manifest = _parsed(_PARSER, text, label)
    if faults := "; ".join(_contradictions(manifest)):
        raise ManifestError(f"{label}: {faults}")
    return manifest


def _composed_manifest(text: bytes, label: str) -> ComposedManifest:
    manifest = _parsed(_COMPOSED_PARSER, text, label)
    if unlisted := {manifest.sample, manifest.answer} - set(manifest.files):
        raise ManifestError(f"{label}: {', '.join(sorted(unlisted))} is not listed in files")
    return manifest


def _parsed(parser: TypeAdapter[AnyManifest], text: bytes, label: str) -> AnyManifest:
    try:
        return parser.validate_json(text, strict=True)
    except ValidationError as error:
        raise ManifestError(f"{label}: {faults_of(error, whole=MANIFEST)}") from error


def _contradictions(manifest: Manifest) -> list[str]:
    files = [("program", manifest.program), ("params", manifest.params)]
    for program in manifest.programs:
        files += [
            (f"{program.name}'s program", program.program),
            (f"{program.name}'s params", program.params),
        ]
    faults = [
        f"{role} file {name!r} is not listed in files"
        for role, name in files
        if name is not None and name not in manifest.files
    ]
    faults += [f"{name} is a pickle" for name in manifest.files if name.endswith(PICKLED)]
    if manifest.format == 1 and (manifest.programs or manifest.program.endswith(ONNX_SUFFIX)):
        faults.append("programs and an ONNX reference need format 2")
    programs = [program.name for program in manifest.programs]
    if len(set(programs)) != len(programs):
        faults.append(f"names of programs repeat: {programs}")
    for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        names = [spec.name for spec in specs]
        if not names or len(set(names)) != len(names):
            faults.append(f"{kind} names must be distinct and at least one, received {names}")
        for spec in specs:
            if spec.dtype not in DTYPES:
                faults.append(f"{kind} {spec.name!r} has the unknown dtype {spec.dtype!r}")
            if any(size == 0 or size < -1 for size in spec.shape):
                faults.append(f"{kind} {spec.name!r} has the impossible shape {list(spec.shape)}")
    return faults


def is_unused(entry: os.DirEntry[str]) -> bool:
    """Return whether nothing opens this entry of a version directory, so it needs no digest.

    That holds for subdirectories, documents, pickles, and names that no manifest can list, such as
    hidden ones.
    """
    name = entry.name
    unlistable = not FILE_NAME.fullmatch(name) or name.endswith(PICKLED)
    return unlistable or bool(DOCUMENT.fullmatch(name)) or entry.is_dir(follow_symlinks=False)


def verify_files(
    directory: Path, manifest: Contents, *, label: str = "", low_priority: bool = False
) -> None:
    """Compare every file of a version with its manifest; raise ManifestError at the first fault.

    A file that is missing, not listed, a link, or different in a single byte makes the version
    unusable: the framework itself would load it and return garbage. Entries that nothing opens
    (is_unused()) are ignored. With `low_priority`, this takes four times as long and uses a quarter
    of a core. Raises OSError if the directory cannot be listed.
    """
    label = label or f"{directory.parent.name}/{directory.name}"
    with os.scandir(directory) as entries:
        present = {entry.name for entry in entries if not is_unused(entry)} - {MANIFEST}
    if unlisted := sorted(present - set(manifest.files)):
        raise ManifestError(f"{label}: not listed in {MANIFEST}: {', '.join(unlisted)}")
    verify_listed(directory, manifest, label=label, low_priority=low_priority)


def verify_listed(
    directory: Path, manifest: Contents, *, label: str, low_priority: bool = False
) -> None:
    """Compare the listed files as verify_files() does, and ignore all others. Raises ManifestError.

    The others may belong to a program that was added later, for example.
    """
    for name, expected in manifest.files.items():
        try:
            with open_plain_file(directory / name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected.bytes:
                    raise ManifestError(
                        f"{label}: {name} has {size} bytes, its manifest says {expected.bytes}"
                    )
                digest = _sha256(file, low_priority=low_priority)
        except OSError as error:
            raise ManifestError(f"{label}: {name} {_reason(error)}") from error
        if digest != expected.sha256:
            raise ManifestError(
                f"{label}: {name} has sha256 {digest[:12]}…, its manifest says "
                f"{expected.sha256[:12]}…"
            )


def _sha256(file: BufferedReader, *, low_priority: bool) -> str:
    digest = hashlib.sha256()
    began = time.perf_counter()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        if low_priority:
            time.sleep(3 * (time.perf_counter() - began))
            began = time.perf_counter()
    return digest.hexdigest()


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
