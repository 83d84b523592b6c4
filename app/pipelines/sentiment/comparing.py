"""Inputs and measure of agreement for comparing predictors on texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.pipelines.sentiment.parameters import read_parameters
from app.pipelines.sentiment.pipeline import label_agreement, open_tokenizer, tensors_of, tokenise
from app.pipelines.sentiment.texts import TextLimits, check_texts

SENTENCE = "今天加班到很晚才回家，楼下的小店居然还亮着灯，老板笑着问我要不要来一碗热汤面。"
CHARACTERS = (6, 12, 20, 28, 40, 56, 80, 120, 160)
"""Lengths of the texts that are compared by default: as posts are, most of them short."""


class LabelComparison:
    """Samples are (name, tensors); agreement is the share of texts that get the same label."""

    agreement_name = "label agreement"
    agreement = staticmethod(label_agreement)

    def __init__(self, info: ServedModelInfo) -> None:
        self._parameters = read_parameters(info)
        self._tokenizer = open_tokenizer(
            info.directory / "tokenizer.json", max_tokens=self._parameters.max_tokens
        )

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """One of each line that is not empty. Raises ConfigError, or InputError as serving does."""
        texts: list[str] = []
        for file in files:
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file} cannot be read as UTF-8 text") from error
            texts += [line for line in lines if line.strip()]
        return self._tokenised(texts)

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """A spread of lengths, since what a text costs is its length."""
        longest = SENTENCE * (max(CHARACTERS) // len(SENTENCE) + 1)
        return self._tokenised([longest[:length] for length in CHARACTERS])

    def _tokenised(self, texts: Sequence[str]) -> list[tuple[str, Tensors]]:
        check_texts(texts, limits=TextLimits(texts=len(texts)))
        tokenised = tokenise(texts, self._tokenizer, lengths=self._parameters.lengths())
        return [
            (
                f"text {number} ({text.tokens} tokens)",
                tensors_of([text], pad_id=self._parameters.pad_id),
            )
            for number, text in enumerate(tokenised, 1)
        ]
