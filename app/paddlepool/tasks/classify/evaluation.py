"""Sample pictures, and the measure of agreement, for `paddlepool compare`."""

from collections.abc import Sequence
from pathlib import Path

from paddlepool.contracts.errors import InputError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.quality.ports import read_bytes
from paddlepool.tasks.classify.model import read_classifier
from paddlepool.tasks.classify.pipeline import label_agreement
from paddlepool.tasks.classify.stages import network_input
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import opaque


class LabelComparison:
    """How `paddlepool compare` measures a classifier: on pictures, by the share of equal labels.

    Constructing one raises ConfigError as read_classifier() does.
    """

    agreement_name = "label agreement"
    least_agreement = 0.95

    def __init__(self, info: ServedModelInfo) -> None:
        self._classifier = read_classifier(info)
        self.agreement = label_agreement(info)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """Return the file name and the model's input for each picture.

        Raises ConfigError if a file cannot be read, and InputError if it is no usable picture.
        """
        return [(file.name, self._tensors(file)) for file in files]

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """Return no samples: the self-test's input is enough, as most models accept one shape."""
        return []

    def _tensors(self, path: Path) -> Tensors:
        classifier = self._classifier
        values = {"operations": classifier.operations, "shape": classifier.shape}
        try:
            picture = opaque(decode(read_bytes(path), PictureLimits()))
            return {classifier.input: network_input(picture, values)["input"]}
        except InputError as error:
            raise error.about(str(path)) from None
