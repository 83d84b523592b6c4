"""A text gets the same scores alone and in any batch, in every group that opens here."""

import json
import random
from contextlib import closing
from itertools import groupby

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendUnavailable
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.tasks.sentiment.pipeline import (
    Tokenised,
    open_tokenizer,
    read_parameters,
    softmax,
    tensors_of,
    tokenise,
)
from tests.ran import ROOT

pytestmark = [pytest.mark.paddle, pytest.mark.slow]

REPOSITORY = ModelRepository(ROOT / "model_repo")
VERSIONS = REPOSITORY.versions("emotion")
NEWEST = REPOSITORY.read("emotion", VERSIONS[0])
# Groups for comparison alone, and those of several threads, which run the kernels of one thread,
# take a minute.
EVERY_GROUP = [
    pytest.param(
        VERSIONS[0],
        group.name,
        marks=() if group.candidate and group.threads == 1 else pytest.mark.nightly,
    )
    for group in NEWEST.config.instance_group
]
INT8 = [
    (version, group.name)
    for version in VERSIONS[1:]
    for group in NEWEST.config.instance_group
    if group.program == "int8"
]
BATCHES = 25
PROMISED = 1e-4


def texts() -> list[str]:
    """24 sentences, of which every third repeats itself and fills a longer bucket."""
    lines = (ROOT / "training" / "emotion" / "everyday.jsonl").read_text("utf-8").splitlines()
    own = [json.loads(line)["text"] for line in lines[::2]][:24]
    return [text * (4 if number % 3 == 0 else 1) for number, text in enumerate(own)]


@pytest.mark.parametrize(("version", "group"), [*EVERY_GROUP, *INT8])
def test_a_text_has_the_same_scores_alone_and_in_any_batch(version: int, group: str) -> None:
    files = REPOSITORY.read("emotion", version)
    parameters = read_parameters(files.info())
    tokenizer = open_tokenizer(files.info(), parameters)
    tokenised = tokenise(texts(), tokenizer, lengths=parameters.lengths())
    alike = [
        list(same)
        for _, same in groupby(
            sorted(tokenised, key=lambda text: text.bucket), lambda text: text.bucket
        )
    ]
    alike = [same for same in alike if len(same) > 1]
    assert sum(map(len, alike)) >= 20
    draw = random.Random(5)
    spec = files.spec(files.config.group(group))
    if "no CUDA device" in spec.refusal:
        pytest.skip(f"NOT TESTED: {spec.refusal}")
    try:
        predictor = ProcessBackend()(spec)
    except BackendUnavailable as error:
        pytest.skip(f"NOT TESTED: {error.message}")

    def scores(batch: list[Tokenised]) -> np.ndarray:
        outputs = predictor.run(tensors_of(batch, pad_id=parameters.pad_id), timeout=60.0)
        return np.array([softmax(row) for row in outputs["logits"].tolist()])

    with closing(predictor):
        alone = {id(text): scores([text])[0] for same in alike for text in same}
        for number in range(BATCHES):
            same = alike[number % len(alike)]
            batch = draw.sample(same, draw.randint(2, min(len(same), 8)))
            apart = np.abs(scores(batch) - [alone[id(text)] for text in batch])
            assert apart.max() <= PROMISED
