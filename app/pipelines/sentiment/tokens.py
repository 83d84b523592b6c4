"""Texts to the int64 tensors of a BERT, each padded to its length bucket."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from app.contracts.errors import ConfigError
from app.contracts.tensors import Tensors
from app.pipelines.sentiment.texts import nothing_to_read


class Tokenised(NamedTuple):
    """One text: the ids that the model reads, its two markers included, the bucket that holds
    them, and whether the text had more."""

    ids: Sequence[int]
    bucket: int
    truncated: bool

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def padding(self) -> int:
        """How many are added to fill the bucket."""
        return self.bucket - len(self.ids)


def open_tokenizer(path: Path, *, max_tokens: int) -> Tokenizer:
    """The tokenizer of a version directory, cutting at `max_tokens`; raises ConfigError."""
    # One request's texts are read by one thread of ours: the library's own threads would fight
    # with the predictors for the cores, and it warns when they exist and the process forks.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        return _tokenizer(path.read_text("utf-8"), max_tokens)
    except Exception as error:  # the Rust binding raises bare Exception
        raise ConfigError(f"{path.name} of {path.parent.parent.name} is not a tokenizer") from error


@lru_cache(maxsize=4)
def _tokenizer(text: str, max_tokens: int) -> Tokenizer:
    """Built once for all versions that have the same: it takes 15 ms, and the interpreter lock
    with it, so that no request would be answered meanwhile."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a "[SEP]" that someone typed is text, not a marker
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def tokenise(
    texts: Sequence[str], tokenizer: Tokenizer, *, lengths: Sequence[int]
) -> tuple[Tokenised, ...]:
    """Each text in the smallest of the rising `lengths` that holds its tokens.

    Raises TextEmpty for a text of which the tokenizer keeps nothing.
    """
    markers = tokenizer.num_special_tokens_to_add(False)
    # Unlike encode(), encode_batch_fast() gives up the interpreter lock while it works.
    encodings = tokenizer.encode_batch_fast(list(texts))
    tokenised = []
    for position, encoding in enumerate(encodings, 1):
        ids = encoding.ids
        if len(ids) <= markers:
            raise nothing_to_read(position, len(texts), received=len(texts[position - 1]))
        bucket = lengths[bisect_left(lengths, len(ids))]
        tokenised.append(Tokenised(ids, bucket, bool(encoding.overflowing)))
    return tuple(tokenised)


def tensors_of(texts: Sequence[Tokenised], *, pad_id: int) -> Tensors:
    """Texts of one bucket as int64 [texts, bucket] tensors."""
    shape = (len(texts), texts[0].bucket)
    input_ids = np.full(shape, pad_id, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    for row, text in enumerate(texts):
        input_ids[row, : text.tokens] = text.ids
        attention_mask[row, : text.tokens] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}
