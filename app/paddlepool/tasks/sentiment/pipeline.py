"""Turns texts into engine jobs and logits into scored labels, for one model version.

Each text is padded to the smallest length bucket that holds it; texts of one bucket share jobs.
Padding every text to the maximum would cost up to 20 times the work, and arbitrary lengths would
make oneDNN's memory grow without end.

Texts are checked before the tokenizer sees a character: it would read a long text whole before
truncating it, and 3.4 million characters take 23 s. No message repeats any part of a text.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import Tokenizer

from paddlepool.contracts import errors
from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.ports import RequestContext, ServedModelInfo, Slices
from paddlepool.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from paddlepool.models.repository.config import parse_parameters
from paddlepool.settings.server import KIB, Bytes, Settings
from paddlepool.tasks.options import Options

# White space, control characters, and what Unicode calls default-ignorable (zero-width spaces and
# joiners, BOM, bidi marks, fillers, variation selectors, tags), plus the blank braille pattern.
_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)

# Half of a surrogate pair: JSON can represent it, UTF-8 and the tokenizer cannot.
_SURROGATE = re.compile(r"[\ud800-\udfff]")

MAX_TOP_K = 1_000
"""Largest `top_k` in every request format; a model with fewer labels returns all of them."""


class SentimentSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    sentiment_max_bytes: Bytes = Field(
        256 * KIB, description="Maximum request body of /sentiment, in bytes."
    )
    text_max_characters: int = Field(
        2_000, ge=1, le=1_000_000, description="Maximum characters of one text, before tokenising."
    )
    text_max_inputs: int = Field(
        32, ge=1, le=1_024, description="Maximum texts in one request to /sentiment."
    )


TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]


class SentimentOptions(Options):
    """The options of a request over `/v2`."""

    top_k: TopK | None = None


class TextRequest(NamedTuple):
    """Texts, and how they are answered. check_texts() must accept them before run().

    Each text gets at most `top_k` labels; None means all. Without `truncate`, a text that the model
    would truncate is rejected.
    """

    texts: Sequence[str]
    top_k: int | None = None
    truncate: bool = True


def check_texts(texts: Sequence[str], *, limits: SentimentSettings) -> None:
    """Check the texts of a request before they are tokenised.

    Raises TooManyInputs or TextTooLong above the `limits`, TextEmpty if there is no text or one
    without visible characters, and InvalidParameter for a lone surrogate.
    """
    if len(texts) > limits.text_max_inputs:
        raise errors.TooManyInputs(
            f"{len(texts)} texts in one request; the limit is {limits.text_max_inputs}",
            limit=limits.text_max_inputs,
            received=len(texts),
        )
    if not texts:
        raise errors.TextEmpty(
            "the request holds no text; at least 1 is expected", limit=1, received=0
        )
    most = limits.text_max_characters
    for position, text in enumerate(texts, 1):
        name = f"text {position} of {len(texts)}"
        if len(text) > most:
            raise errors.TextTooLong(
                f"{name} has {len(text)} characters; the limit is {most}",
                limit=most,
                received=len(text),
            )
        if _SURROGATE.search(text):
            raise errors.InvalidParameter(
                f"{name} contains a lone surrogate, which is not a character; expected Unicode text"
            )
        if _INVISIBLE.fullmatch(text):
            raise errors.TextEmpty(
                f"{name} has {len(text)} characters and none of them is visible", received=len(text)
            )


MODEL_INPUTS = ("attention_mask", "input_ids")
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Parameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[str, ...] = Field(min_length=1)
    labels_zh: tuple[str, ...] | None = None
    buckets: tuple[int, ...] = Field(default=BUCKETS, min_length=1)
    max_tokens: int = Field(default=512, ge=3)
    pad_id: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _agree(self) -> Parameters:
        if self.labels_zh is not None and len(self.labels_zh) != len(self.labels):
            raise ValueError(f"{len(self.labels_zh)} labels_zh for {len(self.labels)} labels")
        if self.buckets[0] < 1 or any(low >= high for low, high in pairwise(self.buckets)):
            raise ValueError(f"buckets must rise from 1 or more, received {list(self.buckets)}")
        if self.max_tokens > self.buckets[-1]:
            raise ValueError(
                f"max_tokens {self.max_tokens} does not fit the largest bucket {self.buckets[-1]}"
            )
        return self

    def lengths(self) -> tuple[int, ...]:
        """Return the padded lengths of texts: the buckets below `max_tokens`, and `max_tokens`."""
        return (*(size for size in self.buckets if size < self.max_tokens), self.max_tokens)


def read_parameters(info: ServedModelInfo) -> Parameters:
    """Read `[parameters]` of the model.

    Raises ConfigError if they are wrong, or if the model's inputs and outputs do not fit the task.
    """
    parameters = parse_parameters(info, Parameters)
    names = tuple(sorted(spec.name for spec in info.inputs))
    if names != MODEL_INPUTS or any(spec.dtype != "int64" for spec in info.inputs):
        raise errors.ConfigError(
            f"{info.name} takes {', '.join(f'{s.name} ({s.dtype})' for s in info.inputs)}; "
            f"the sentiment task feeds {' and '.join(MODEL_INPUTS)} as int64"
        )
    logits = info.outputs[0]
    if len(info.outputs) != 1 or len(logits.shape) != 2:
        raise errors.ConfigError(
            f"{info.name} returns {len(info.outputs)} tensors, the first of {len(logits.shape)} "
            "axes; the sentiment task expects one tensor [texts, labels] of logits"
        )
    if logits.shape[1] not in (-1, len(parameters.labels)):
        raise errors.ConfigError(
            f"{info.name} returns {logits.shape[1]} logits for {len(parameters.labels)} labels"
        )
    return parameters


class Tokenised(NamedTuple):
    """One tokenised text: the `ids` of its tokens, which tensors_of() pads to the length `bucket`.

    The ids include markers such as [CLS]; `tokens` is the number of ids.
    """

    ids: Sequence[int]
    tokens: int
    bucket: int
    truncated: bool

    @property
    def padding(self) -> int:
        return self.bucket - self.tokens


def open_tokenizer(info: ServedModelInfo, parameters: Parameters) -> Tokenizer:
    """Open a version's tokenizer.json; the tokenizer truncates to `max_tokens`.

    Also disables the library's own threads in this process. Raises ConfigError if the file is
    missing or is no tokenizer.
    """
    path = info.directory / "tokenizer.json"
    # The library's own threads would compete with the predictors for the cores, and the library
    # warns if they exist when the process forks.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        return _tokenizer(path.read_text("utf-8"), parameters.max_tokens)
    except Exception as error:  # the Rust binding raises bare Exception
        raise errors.ConfigError(
            f"{path.name} of {path.parent.parent.name} is not a tokenizer"
        ) from error


@lru_cache(maxsize=4)
def _tokenizer(text: str, max_tokens: int) -> Tokenizer:
    """Return the tokenizer for the text of a tokenizer.json, the same for equal arguments.

    The last four are kept, because building one holds the interpreter lock.
    """
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a "[SEP]" in a client's text is text, not a marker
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def tokenise(
    texts: Sequence[str], tokenizer: Tokenizer, *, lengths: Sequence[int], truncate: bool = True
) -> tuple[Tokenised, ...]:
    """Tokenise texts; the bucket of each is the smallest of the rising `lengths` that holds it.

    A text with more tokens than the tokenizer's maximum is truncated. Raises TextTooLong for it
    instead if `truncate` is false, and TextEmpty if the model can read no character of a text.
    """
    markers = tokenizer.num_special_tokens_to_add(False)
    tokenised = []
    # Unlike encode(), encode_batch_fast() releases the interpreter lock while it works.
    for position, encoding in enumerate(tokenizer.encode_batch_fast(list(texts)), 1):
        ids = encoding.ids
        tokens = len(ids)
        if tokens <= markers:
            received = len(texts[position - 1])
            raise errors.TextEmpty(
                f"text {position} of {len(texts)} has {received} characters, and the model can "
                "read none of them",
                received=received,
            )
        truncated = bool(encoding.overflowing)
        if truncated and not truncate:
            received = tokens + sum(len(part.ids) - markers for part in encoding.overflowing)
            raise errors.TextTooLong(
                f"text {position} of {len(texts)} has {received} tokens, the model reads "
                f"{lengths[-1]}, and truncation is not allowed",
                limit=lengths[-1],
                received=received,
            )
        bucket = lengths[bisect_left(lengths, tokens)]
        tokenised.append(Tokenised(ids, tokens, bucket, truncated))
    return tuple(tokenised)


def tensors_of(texts: Sequence[Tokenised], *, pad_id: int) -> Tensors:
    """Return the model's inputs for texts of one bucket: int64 tensors [texts, bucket]."""
    input_ids = np.array([[*text.ids, *[pad_id] * text.padding] for text in texts], np.int64)
    attention_mask = np.zeros(input_ids.shape, np.int64)
    for row, text in enumerate(texts):
        attention_mask[row, : text.tokens] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


class Score(NamedTuple):
    """One label with its probability. A frozen dataclass would take longer to make."""

    label: str
    label_zh: str | None
    score: float


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the probabilities for the logits of one text.

    For so few numbers, NumPy would take longer.
    """
    most = max(logits)
    powers = [math.exp(logit - most) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def rank(
    probabilities: Sequence[float], *, labels: Sequence[str], labels_zh: Sequence[str | None]
) -> tuple[Score, ...]:
    """Return the labels by descending probability; ties keep their order."""
    scores = map(Score, labels, labels_zh, probabilities)
    return tuple(sorted(scores, key=attrgetter("score"), reverse=True))


def label_agreement(outputs: Tensors, expected: Tensors) -> float:
    """Return the share of texts with equal labels in two outputs, logits (texts, labels)."""
    [logits], [reference] = outputs.values(), expected.values()
    return float(np.mean(logits.argmax(axis=-1) == reference.argmax(axis=-1)))


def label_slices(info: ServedModelInfo) -> Slices:
    """Return a function that returns the best label of each text in a model's outputs.

    Raises ConfigError as read_parameters() does.
    """
    labels = read_parameters(info).labels

    def slices(outputs: Tensors) -> list[str]:
        [logits] = outputs.values()
        return [labels[index] for index in logits.argmax(axis=-1).tolist()]

    return slices


MAX_PENDING = 64
"""Maximum requests of a model that wait for its tokenizer, which takes less than 0.1 s for the
longest one."""

SHORT_CHARACTERS = 1_536
"""Requests of up to this many characters in total are tokenised on the event loop, which takes a
millisecond at most. Switching to a thread and back takes nearly as long when the cores are busy."""


class TextScores(NamedTuple):
    scores: tuple[Score, ...]
    tokens: int
    truncated: bool
    padding: int


TextJobs = tuple[Sequence[Tokenised], Sequence[int], Sequence[Tensors]]
"""The texts, the position of the text in each row of the jobs, and the jobs."""


class SentimentPipeline:
    """Implements the Pipeline port; a payload is a TextRequest, a value a tuple of TextScores."""

    def __init__(self, info: ServedModelInfo, *, executor: Executor) -> None:
        """Open the version's tokenizer.json. Raises ConfigError if it or the model is unusable."""
        parameters = read_parameters(info)
        self._labels = parameters.labels
        self._labels_zh = parameters.labels_zh or (None,) * len(parameters.labels)
        self._pad_id = parameters.pad_id
        self._tokenizer = open_tokenizer(info, parameters)
        self._lengths = parameters.lengths()
        self._max_rows = info.max_rows
        self._executor = executor
        self._pending = 0

    async def run(self, payload: TextRequest, context: RequestContext) -> tuple[TextScores, ...]:
        """Return the scores of each text, and subtract the texts from the caller's quota.

        Short requests are tokenised on the event loop, others in a thread. Raises TextEmpty,
        TextTooLong, DeadlineExceeded, Overloaded if too many requests wait for the tokenizer,
        QuotaExceeded, the errors of RequestContext.infer(), and ModelOutputInvalid if the model's
        output has a wrong shape.
        """
        CALLER.get().spend("texts", len(payload.texts))
        if sum(map(len, payload.texts)) <= SHORT_CHARACTERS:
            texts, order, jobs = self._tokenise(payload, context)
        else:
            texts, order, jobs = await self._tokenise_in_thread(payload, context)
        outputs = await context.infer(jobs)
        with context.stage("postprocess"):
            logits = np.concatenate([array for output in outputs for array in output.values()])
            expected = (len(texts), len(self._labels))
            if logits.shape != expected:
                raise errors.ModelOutputInvalid(
                    f"the model returned scores of shape {list(logits.shape)}, "
                    f"expected {list(expected)}"
                )
            rows = dict(zip(order, logits.tolist(), strict=True))
            value = []
            for place, text in enumerate(texts):
                scores = rank(softmax(rows[place]), labels=self._labels, labels_zh=self._labels_zh)
                value.append(
                    TextScores(scores[: payload.top_k], text.tokens, text.truncated, text.padding)
                )
            return tuple(value)

    def close(self) -> None:
        """Do nothing: the executor is shared and belongs to `paddlepool.main`."""

    async def _tokenise_in_thread(self, payload: TextRequest, context: RequestContext) -> TextJobs:
        if self._pending >= MAX_PENDING:
            raise errors.Overloaded(
                f"{self._pending} requests wait for the tokenizer, which is the limit",
                limit=MAX_PENDING,
                received=self._pending,
            )
        self._pending += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._tokenise, payload, context)
        finally:
            self._pending -= 1

    def _tokenise(self, payload: TextRequest, context: RequestContext) -> TextJobs:
        """Tokenise the texts, and make jobs of at most `max_rows` texts, the shortest bucket first.

        Raises DeadlineExceeded if the deadline has passed, and the errors of tokenise().
        """
        if time.monotonic() >= context.deadline:
            raise errors.DeadlineExceeded("the deadline passed before the text was tokenised")
        with context.stage("preprocess"):
            texts = tokenise(
                payload.texts, self._tokenizer, lengths=self._lengths, truncate=payload.truncate
            )
            if len(texts) == 1:  # as most requests; sorting and grouping would take longer
                return texts, (0,), (tensors_of(texts, pad_id=self._pad_id),)
            order = sorted(range(len(texts)), key=lambda position: texts[position].bucket)
            jobs, most = [], self._max_rows
            for _, alike in groupby([texts[n] for n in order], key=attrgetter("bucket")):
                rows = list(alike)
                for start in range(0, len(rows), most):
                    jobs.append(tensors_of(rows[start : start + most], pad_id=self._pad_id))
            return texts, order, jobs


def tensors(settings: Settings) -> TaskTensors:
    own = settings.of(SentimentSettings)
    return TaskTensors(
        inputs=(TensorSpec("text", STRINGS, (-1,)),),
        outputs=(
            TensorSpec("labels", STRINGS, (-1, -1)),
            TensorSpec("labels_zh", STRINGS, (-1, -1)),
            TensorSpec("scores", "float32", (-1, -1)),
            TensorSpec("tokens", "int32", (-1,)),
            TensorSpec("truncated", "bool", (-1,)),
        ),
        parameters=tuple(SentimentOptions.model_fields),
        read=partial(_read, limits=own),
        write=_write,
        max_bytes=own.sentiment_max_bytes,
        padding=lambda value: sum(result.padding for result in value),
    )


def _read(
    inputs: Tensors, parameters: Mapping[str, Any], *, limits: SentimentSettings
) -> TextRequest:
    options = SentimentOptions.model_validate(parameters)
    texts = []
    for position, text in enumerate(inputs["text"].tolist(), 1):
        try:
            texts.append(text.decode())
        except UnicodeDecodeError as error:
            raise errors.InvalidParameter(
                f"text {position} is not UTF-8 at byte {error.start}"
            ) from None
    check_texts(texts, limits=limits)
    return TextRequest(texts, options.top_k)


def _write(value: Sequence[TextScores]) -> Tensors:
    """Return the reply's tensors; Chinese names are empty if the model has none."""
    shape = (len(value), len(value[0].scores))
    scores = [score for result in value for score in result.scores]
    return {
        "labels": strings_of([score.label.encode() for score in scores], shape),
        "labels_zh": strings_of([(score.label_zh or "").encode() for score in scores], shape),
        "scores": np.array([score.score for score in scores], np.float32).reshape(shape),
        "tokens": np.array([result.tokens for result in value], np.int32),
        "truncated": np.array([result.truncated for result in value], np.bool_),
    }
