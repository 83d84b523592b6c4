"""How `paddlepool compare` measures a text detector or recogniser."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.transforms.agreement import NAMES, part_agreement, part_config
from paddlepool.tasks.transforms.samples import Sample, read_pictures, sample_pictures
from paddlepool.tasks.transforms.stages import prepare


class PartComparison:
    """How `paddlepool compare` measures a text detector or recogniser: samples and agreement.

    A sample is a picture, prepared by the operations of the model's inference.yml.
    """

    least_agreement = 0.95

    def __init__(self, info: ServedModelInfo) -> None:
        """Raise ConfigError if the model is neither a text detector nor a recogniser."""
        config, agreement = part_config(info), part_agreement(info)
        if config is None or agreement is None:
            raise ConfigError(f"{info.name} is neither a text detector nor a recogniser")
        [spec] = info.inputs
        self._input, self._config = spec.name, config
        self.agreement = agreement
        self.agreement_name = NAMES[type(config.postprocess)]

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """Return the file name and the model's input for each picture.

        Raises ConfigError if a file cannot be read, and InputError if it is no usable picture.
        """
        return self._prepared(read_pictures(files))

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """Return the name and the model's input for each of a few drawn pictures.

        They are pages of printed text for a detector, and lines of text for a recogniser.
        """
        return self._prepared(sample_pictures(self._config))

    def _prepared(self, pictures: Iterable[Sample]) -> list[tuple[str, Tensors]]:
        operations = self._config.as_meta()
        return [(name, {self._input: prepare(picture, operations)}) for name, picture in pictures]
