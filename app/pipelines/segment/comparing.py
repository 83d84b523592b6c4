"""What a comparison of predictors needs of this task: inputs from pictures, agreement of masks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.codecs.decode import decode
from app.codecs.limits import PictureLimits
from app.contracts.errors import ConfigError, InputError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.pipelines.segment import matte
from app.pipelines.segment.parameters import MaskAgreement, read_parameters


class MaskComparison:
    """Samples are (name, tensors); agreement is the intersection over union of two masks."""

    agreement_name = "mask IoU"

    def __init__(self, info: ServedModelInfo) -> None:
        self._parameters = read_parameters(info)
        self._input = info.inputs[0].name
        self.agreement = MaskAgreement(info)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """One of each picture. Raises ConfigError for an unreadable file, InputError as serving."""
        return [(file.name, {self._input: self._tensor(file)}) for file in files]

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """None: every picture costs the same, so the self-test's will do."""
        return []

    def _tensor(self, file: Path) -> matte.Floats:
        try:
            body = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        try:
            pixels = matte.over_white(decode(body, PictureLimits()))
        except InputError as error:
            raise error.about(str(file)) from None
        wanted = self._parameters
        return matte.network_input(pixels, wanted.size, wanted.mean, wanted.std)
