"""From texts to jobs and from logits to labels, with a toy tokenizer and no model."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from paddlepool.contracts.errors import (
    ConfigError,
    DeadlineExceeded,
    ModelOutputInvalid,
    Overloaded,
    TextEmpty,
    TextTooLong,
)
from paddlepool.contracts.ports import WHOLE, RequestContext, ServedModelInfo
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.tasks.sentiment.pipeline import (
    SHORT_CHARACTERS,
    Parameters,
    SentimentPipeline,
    SentimentSettings,
    TextRequest,
    TextScores,
    check_texts,
    open_tokenizer,
    rank,
    softmax,
    tensors_of,
    tokenise,
)
from tests.engine.fakes import calling
from tests.ran import ROOT

LABELS = ["angry", "happy", "neutral", "surprise", "sad", "fear"]
LABELS_ZH = ["愤怒", "快乐", "平静", "惊讶", "悲伤", "恐惧"]
PARAMETERS = {
    "labels": LABELS,
    "labels_zh": LABELS_ZH,
    "buckets": [16, 32, 64, 128],
    "max_tokens": 128,
    "pad_id": 0,
}
LONG = ["我" * SHORT_CHARACTERS + "很"]
"""Enough characters for the tokenizer's own thread."""


INFO = ServedModelInfo(
    name="emotion",
    version=1,
    directory=Path(),
    parameters=PARAMETERS,
    inputs=(
        TensorSpec("input_ids", "int64", (-1, -1)),
        TensorSpec("attention_mask", "int64", (-1, -1)),
    ),
    outputs=(TensorSpec("logits", "float32", (-1, 6)),),
    max_rows=4,
)


def toy_tokenizer() -> Tokenizer:
    """One token a Chinese character of a short list or a lower-case letter; [UNK] for the rest."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"今天我很高兴难过的事", *"abcdefghij"]
    words += [f"##{letter}" for letter in "abcdefghij"]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


@pytest.fixture
def info(tmp_path: Path) -> ServedModelInfo:
    directory = tmp_path / "emotion" / "1"
    directory.mkdir(parents=True)
    toy_tokenizer().save(str(directory / "tokenizer.json"))
    return replace(INFO, directory=directory)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def gate(executor: ThreadPoolExecutor) -> Iterator[threading.Event]:
    """Keeps the executor busy until it is set."""
    gate = threading.Event()
    executor.submit(gate.wait)
    yield gate
    gate.set()


@pytest.fixture
def pipeline(info: ServedModelInfo, executor: ThreadPoolExecutor) -> SentimentPipeline:
    return SentimentPipeline(info, executor=executor)


def fake_model(job: Tensors) -> Tensors:
    """Logits that depend on each row's real tokens and on nothing else."""
    real = job["input_ids"] * job["attention_mask"]  # type: ignore[operator]
    weights = np.arange(1, 7, dtype=np.float64)
    return {"logits": np.cos(real.sum(axis=1, keepdims=True) * weights).astype(np.float32)}


class ModelContext(RequestContext):
    """A request whose `jobs` are run by a function."""

    def __init__(
        self, model: Callable[[Tensors], Tensors] = fake_model, deadline: float = math.inf
    ) -> None:
        super().__init__(deadline=deadline)
        self.model = model
        self.jobs: list[Tensors] = []

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        self.jobs.extend(jobs)
        return [self.model(job) for job in jobs]


def classify(
    pipeline: SentimentPipeline, texts: Sequence[str], **options: Any
) -> tuple[TextScores, ...]:
    return asyncio.run(pipeline.run(TextRequest(texts, **options), ModelContext()))


def jobs_of(pipeline: SentimentPipeline, *texts: str) -> list[Tensors]:
    asyncio.run(pipeline.run(TextRequest(texts), context := ModelContext()))
    return context.jobs


def test_each_text_gets_its_best_labels(pipeline: SentimentPipeline) -> None:
    every = classify(pipeline, ["我", "难过"])
    best = classify(pipeline, ["我", "难过"], top_k=2)
    assert [text.scores for text in best] == [text.scores[:2] for text in every]
    assert classify(pipeline, ["我", "难过"], top_k=100) == every


def test_texts_cost_their_caller_one_each(pipeline: SentimentPipeline) -> None:
    with calling("somebody", quota=(quota := Mock())):
        classify(pipeline, ["one", "two", "three"])
        classify(pipeline, ["four"])
    assert quota.spend.mock_calls == [call("texts", 3), call("texts", 1)]


@pytest.mark.parametrize(
    ("characters", "bucket"),
    [(1, 16), (14, 16), (15, 32), (30, 32), (31, 64), (126, 128), (127, 128), (1_999, 128)],
)
def test_a_text_is_padded_to_the_smallest_bucket_that_holds_it(
    pipeline: SentimentPipeline, characters: int, bucket: int
) -> None:
    """Two of a bucket's places belong to [CLS] and [SEP]; the largest bucket cuts the rest off."""
    [job] = jobs_of(pipeline, "我" * characters)
    assert (1, bucket) == job["input_ids"].shape == job["attention_mask"].shape
    assert np.int64 == job["input_ids"].dtype == job["attention_mask"].dtype
    real = min(characters + 2, 128)
    assert real == job["attention_mask"].sum() == np.count_nonzero(job["input_ids"])
    assert [job["input_ids"][0, 0], job["input_ids"][0, real - 1]] == [2, 3]


@pytest.mark.parametrize(("characters", "truncated"), [(126, False), (127, True), (2_000, True)])
def test_truncation_is_told(pipeline: SentimentPipeline, characters: int, truncated: bool) -> None:
    [result] = classify(pipeline, ["难" * characters])
    assert (truncated, 128, 0) == (result.truncated, result.tokens, result.padding)


def test_a_text_that_is_to_be_read_whole_is_not_cut(pipeline: SentimentPipeline) -> None:
    """The second of three is one character too long; none of them comes to a job."""
    fits = "难" * 126
    assert len(classify(pipeline, [fits, "我"], truncate=False)) == 2
    with pytest.raises(TextTooLong, match="text 2 of 3 has 129 tokens, the model reads 128"):
        classify(pipeline, [fits, fits + "难", "我"], truncate=False)


def test_texts_of_a_bucket_are_one_job_of_up_to_its_rows(pipeline: SentimentPipeline) -> None:
    """Each shape's texts in their order, four to a job, and scores in the order of the texts."""
    texts = ["我", "我" * 20, "难过", "我" * 40, *("高" * n for n in range(1, 4)), "很" * 21]
    asyncio.run(pipeline.run(TextRequest(texts), context := ModelContext()))
    shapes = [job["input_ids"].shape for job in context.jobs]
    assert shapes == [(4, 16), (1, 16), (2, 32), (1, 64)]
    assert shapes == [job["attention_mask"].shape for job in context.jobs]
    assert list(context.stages) == ["preprocess", "postprocess"]
    alone = [classify(pipeline, [text])[0] for text in texts]
    assert list(classify(pipeline, texts)) == alone
    assert len({result.scores for result in alone}) == len(texts)


def test_the_maximum_is_a_bucket_even_between_two(info: ServedModelInfo) -> None:
    """max_tokens 100 with buckets 64 and 128 pads long texts to 100, never past the model's end."""
    parameters = Parameters.model_validate(PARAMETERS | {"max_tokens": 100})
    assert parameters.lengths() == (16, 32, 64, 100)
    tokenizer = open_tokenizer(info, parameters)
    [text] = tokenise(["我" * 500], tokenizer, lengths=parameters.lengths())
    assert (text.tokens, text.truncated) == (100, True)
    assert tensors_of([text], pad_id=0)["input_ids"].shape == (1, 100)


def test_padding_and_truncation_in_the_file_do_not_count(
    info: ServedModelInfo, executor: ThreadPoolExecutor
) -> None:
    """A tokenizer.json that pads to 512 or cuts at 8 still gives our buckets and our maximum."""
    tokenizer = toy_tokenizer()
    tokenizer.enable_padding(length=512)
    tokenizer.enable_truncation(8)
    tokenizer.save(str(info.directory / "tokenizer.json"))
    pipeline = SentimentPipeline(info, executor=executor)
    [job] = jobs_of(pipeline, "我" * 20)
    assert job["input_ids"].shape == (1, 32)


def test_a_text_of_which_the_tokenizer_keeps_nothing_is_empty(
    info: ServedModelInfo, executor: ThreadPoolExecutor
) -> None:
    """T2: the model would answer something for [CLS][SEP] alone; nobody asked it that."""
    tokenizer = toy_tokenizer()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.BertNormalizer(), normalizers.Replace("~", "")]
    )
    tokenizer.save(str(info.directory / "tokenizer.json"))
    check_texts(["~~~"], limits=SentimentSettings())
    pipeline = SentimentPipeline(info, executor=executor)
    with pytest.raises(TextEmpty, match="text 2 of 2 has 3 characters"):
        classify(pipeline, ["我", "~~~"])


@given(
    st_numpy.arrays(
        np.float32,
        st.tuples(st.integers(1, 8), st.integers(1, 12)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    )
)
def test_scores_sum_to_one_for_any_finite_logits(logits: Array) -> None:
    """Also where exp() of a float32 would overflow."""
    for row in logits.tolist():
        assert sum(softmax(row)) == pytest.approx(1.0, rel=0, abs=1e-12)


def test_a_wrong_number_of_logits_is_refused(pipeline: SentimentPipeline) -> None:
    """A model whose last axis is free may still return too few; no label is then guessed."""
    context = ModelContext(lambda _: {"logits": np.zeros((1, 5), np.float32)})
    with pytest.raises(ModelOutputInvalid, match=r"\[1, 5\]"):
        asyncio.run(pipeline.run(TextRequest(["我"]), context))


def test_labels_come_best_first_with_their_chinese_names() -> None:
    ranked = rank([0.1, 0.4, 0.1, 0.1, 0.2, 0.1], labels=LABELS, labels_zh=LABELS_ZH)
    assert [s.label for s in ranked] == ["happy", "sad", "angry", "neutral", "surprise", "fear"]
    assert [s.label_zh for s in ranked[:2]] == ["快乐", "悲伤"]
    assert [s.score for s in ranked[:2]] == [0.4, 0.2]


async def test_more_waiting_requests_than_allowed_are_refused_at_once(
    pipeline: SentimentPipeline, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor's queue is bounded: what would wait without end gets Overloaded instead."""
    monkeypatch.setattr("paddlepool.tasks.sentiment.pipeline.MAX_PENDING", 2)

    def ask() -> asyncio.Task[tuple[TextScores, ...]]:
        return asyncio.create_task(pipeline.run(TextRequest(LONG), ModelContext()))

    waiting = [ask(), ask()]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await ask()
    assert (caught.value.limit, caught.value.received) == (2, 2)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    replacement = ask()  # a cancelled one makes room
    await asyncio.sleep(0)
    gate.set()
    assert 1 == len(await waiting[0]) == len(await replacement)


async def test_a_short_text_is_tokenised_at_once(
    pipeline: SentimentPipeline, gate: threading.Event
) -> None:
    short = "我" * SHORT_CHARACTERS
    assert await asyncio.wait_for(pipeline.run(TextRequest([short]), ModelContext()), 10)
    long = asyncio.create_task(pipeline.run(TextRequest([short, "我"]), ModelContext()))
    await asyncio.sleep(0)
    assert not long.done()
    gate.set()
    assert len(await long) == 2


@pytest.mark.parametrize("texts", [["我"], LONG], ids=["short", "long"])
def test_a_request_past_its_deadline_is_not_tokenised(
    pipeline: SentimentPipeline, texts: list[str]
) -> None:
    """O3: work that can no longer be in time never starts."""
    with pytest.raises(DeadlineExceeded):
        asyncio.run(pipeline.run(TextRequest(texts), ModelContext(deadline=time.monotonic())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (TensorSpec("image", "float32", (-1, 784)),)}, "takes image"),
        ({"outputs": (TensorSpec("d0", "float32", (-1, 1, 320, 320)),)}, "expects one tensor"),
        ({"labels": []}, "parameters.labels"),
        ({"labels_zh": ["一"]}, "1 labels_zh for 6 labels"),
        ({"buckets": [32, 16]}, "buckets must rise"),
        ({"buckets": [0, 16, 128]}, "buckets must rise"),
        ({"max_tokens": 512}, "does not fit the largest bucket 128"),
        ({"colour": "red"}, "parameters.colour"),
        ({"labels": ["a", "b"], "labels_zh": ["一", "二"]}, "6 logits for 2 labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_parameters_name_the_fault(
    info: ServedModelInfo, executor: ThreadPoolExecutor, change: dict[str, Any], message: str
) -> None:
    if not {"inputs", "outputs"} & change.keys():
        change = {"parameters": PARAMETERS | change}
    with pytest.raises(ConfigError, match=message):
        SentimentPipeline(replace(info, **change), executor=executor)


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_missing_or_damaged_tokenizer_is_a_config_error(
    info: ServedModelInfo, executor: ThreadPoolExecutor, content: str | None
) -> None:
    path = info.directory / "tokenizer.json"
    path.unlink() if content is None else path.write_text(content, "utf-8")
    with pytest.raises(ConfigError, match=r"^tokenizer.json of emotion is not a tokenizer$"):
        SentimentPipeline(info, executor=executor)


def test_markers_that_someone_typed_are_text() -> None:
    """The committed tokenizer must not end a text where its author wrote "[SEP]"."""
    version = replace(INFO, directory=ROOT / "model_repo" / "emotion" / "1")
    tokenizer = open_tokenizer(version, Parameters.model_validate(PARAMETERS))
    markers = {tokenizer.token_to_id(marker) for marker in ("[CLS]", "[SEP]", "[PAD]", "[MASK]")}
    [encoding] = tokenizer.encode_batch_fast(["[CLS]好[SEP][PAD][MASK]"])
    assert not markers & set(encoding.ids[1:-1])
