"""Texts to engine jobs and logits to scored labels, for one model version.

Each text is padded to the smallest length bucket that holds it. A request's texts of one bucket
make as few jobs as hold them; the dynamic batcher joins these with other requests' of that bucket.
Fixed padding to the maximum would cost up to 20 times the work; free lengths would make oneDNN's
memory grow without end. A job for each text would be that much more to queue and to settle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from app.awaiting import result_of
from app.contracts.caller import CALLER
from app.contracts.errors import DeadlineExceeded, ModelOutputInvalid, Overloaded
from app.contracts.ports import Clock, Finished, Prepared, ServedModelInfo
from app.contracts.tensors import Array, Tensors
from app.pipelines.sentiment.parameters import Parameters, read_parameters
from app.pipelines.sentiment.scores import Score, rank, softmax
from app.pipelines.sentiment.texts import WholeTexts, cut
from app.pipelines.sentiment.tokens import Tokenised, open_tokenizer, tensors_of, tokenise

MAX_PENDING = 64
"""Requests that may wait for the tokenizer; the longest request takes it under 0.1 s."""

SHORT_CHARACTERS = 1_536
"""Up to so many characters in all are tokenised on the event loop: a millisecond of work at most,
where a change of threads and back costs nearly as much when the cores are busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScores:
    """One text's labels, best first, and what tokenising it came to (see Tokenised)."""

    scores: tuple[Score, ...]
    tokens: int
    truncated: bool
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request's texts, and the place of each in the rows of its jobs."""

    texts: Sequence[Tokenised]
    places: Sequence[int]


class SentimentPipeline:
    """Pipeline port over one tokenizer; a payload is a sequence of texts check_texts accepted."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        parameters: Parameters,
        *,
        max_rows: int,
        executor: Executor,
        max_pending: int = MAX_PENDING,
        clock: Clock = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._parameters = parameters
        self._lengths = parameters.lengths()
        self._max_rows = max_rows
        self._executor = executor
        self._max_pending = max_pending
        self._pending = 0
        self._clock = clock

    async def prepare(self, payload: Sequence[str], *, deadline: float) -> Prepared:
        """Jobs of up to `max_rows` texts each, the shortest bucket first.

        Raises TextEmpty, TextTooLong for WholeTexts, DeadlineExceeded, and Overloaded when
        `max_pending` requests are at the tokenizer already.
        """
        CALLER.get().spend("texts", len(payload))
        if sum(map(len, payload)) <= SHORT_CHARACTERS:
            return self._prepare(payload, deadline)
        if self._pending >= self._max_pending:
            raise Overloaded(
                f"{self._pending} requests wait for the tokenizer, as many as may",
                retry_after=1.0,
                limit=self._max_pending,
                received=self._pending,
            )
        self._pending += 1
        try:
            return await result_of(self._executor.submit(self._prepare, payload, deadline))
        finally:
            self._pending -= 1

    async def finish(
        self,
        prepared: Prepared,
        outputs: Sequence[Tensors],
        *,
        deadline: float,  # noqa: ARG002 - of the port; this cannot take long enough to miss one
    ) -> Finished:
        """A tuple of TextScores, one per text; raises ModelOutputInvalid.

        Runs on the event loop: some hundred numbers cost less than a change of threads.
        """
        return self._finish(prepared.state, outputs)

    def close(self) -> None:
        """Ends nothing: the executor is the server's."""

    def _prepare(self, texts: Sequence[str], deadline: float) -> Prepared:
        if self._clock() >= deadline:
            raise DeadlineExceeded("the deadline passed before the text was tokenised")
        begin = time.perf_counter()
        tokenised = tokenise(texts, self._tokenizer, lengths=self._lengths)
        if isinstance(texts, WholeTexts):
            for position, text in enumerate(tokenised, 1):
                if text.truncated:
                    raise cut(position, len(texts), limit=self._lengths[-1])
        members = _members(tokenised, max_rows=self._max_rows)
        places = [0] * len(tokenised)
        for row, position in enumerate(chain.from_iterable(members)):
            places[position] = row
        return Prepared(
            jobs=tuple(
                tensors_of([tokenised[n] for n in each], pad_id=self._parameters.pad_id)
                for each in members
            ),
            state=_Request(texts=tokenised, places=places),
            stages={"preprocess": time.perf_counter() - begin},
        )

    def _finish(self, request: _Request, outputs: Sequence[Tensors]) -> Finished:
        begin = time.perf_counter()
        logits = np.concatenate([_logits(output) for output in outputs])
        expected = (len(request.texts), len(self._parameters.labels))
        if logits.shape != expected:
            raise ModelOutputInvalid(
                f"the model returned scores of shape {list(logits.shape)}, "
                f"expected {list(expected)}"
            )
        ranked = rank(
            softmax(logits[request.places]),
            labels=self._parameters.labels,
            labels_zh=self._parameters.labels_zh,
        )
        value = tuple(
            TextScores(
                scores=scores, tokens=text.tokens, truncated=text.truncated, padding=text.padding
            )
            for scores, text in zip(ranked, request.texts, strict=True)
        )
        return Finished(value=value, stages={"postprocess": time.perf_counter() - begin})


def open_pipeline(info: ServedModelInfo, *, executor: Executor) -> SentimentPipeline:
    """Reads the version directory's tokenizer.json; raises ConfigError when it does not fit."""
    parameters = read_parameters(info)
    tokenizer = open_tokenizer(info.directory / "tokenizer.json", max_tokens=parameters.max_tokens)
    return SentimentPipeline(tokenizer, parameters, max_rows=info.max_rows, executor=executor)


def _members(texts: Sequence[Tokenised], *, max_rows: int) -> list[list[int]]:
    """Positions of the texts of each job: those of one bucket together, at most `max_rows`."""
    buckets: dict[int, list[int]] = {}
    for position, text in enumerate(texts):
        buckets.setdefault(text.bucket, []).append(position)
    return [
        positions[start : start + max_rows]
        for _, positions in sorted(buckets.items())
        for start in range(0, len(positions), max_rows)
    ]


def _logits(output: Tensors) -> Array:
    [logits] = output.values()
    return logits
