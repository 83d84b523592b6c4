"""Texts of pre-training: every text with and without its emoticons, and its targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from training.emotion.batching import Ids
from training.emotion.corpora import LABELS, TASKS, UNLABELLED, Post
from training.emotion.network import CLASSES
from training.emotion.packing import Packed, packed
from training.emotion.prepare import load
from training.emotion.signs import SIGNS, common, shares, without
from training.emotion.targets import feelings

Shares = npt.NDArray[np.float32]
Targets = tuple[Ids, Ids, Shares, Shares]
"""Task, label, signs and emotion of a batch's texts, ``[texts]`` each; see ``network.Wanted``."""

_BARE = 0.75
"""How often a text with emoticons is shown without them, with the task to predict them."""

_VIEWS = {"smp": 3.0, "polarity": 0.15, UNLABELLED: 0.5, "sentences": 0.5, "drama": 0.7}
"""How often a text is read an epoch; other labelled texts once."""

_LAST_VIEWS = _VIEWS | {"polarity": 0.05, UNLABELLED: 0.05}
"""While the rate falls the network settles on what is nearest to its task."""


class Lessons:
    """All texts of a run in memory: about 20 million tokens, 300 MB."""

    def __init__(self, out: Path, *, teacher: Path | None, last: bool = False) -> None:
        posts = load(out / "train.jsonl") + load(out / "auxiliary.jsonl")
        self.tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        self.texts = self._encoded([post.text for post in posts])
        known = {sign: n for n, sign in enumerate(common([post.text for post in posts]))}
        self.signs = [*known]
        held = [shares(post.text, known) for post in posts]
        self._signed = {n: share for n, share in enumerate(held) if share.any()}
        bare = self._encoded([without(posts[n].text) for n in self._signed])
        self._bare = dict(zip(self._signed, bare, strict=True))
        names = list(TASKS)
        places = {pair: number for number, pair in enumerate(CLASSES)}
        self._task = np.array([names.index(post.task) for post in posts])
        # The six served classes are left to fine-tuning, so that folds stay unseen.
        self._label = np.array(
            [-100 if p.task == "smp" else places.get((p.task, p.label), -100) for p in posts]
        )
        # These labels were read off the emoticons: they say nothing where those are shown.
        self._from_signs = self._task == names.index("signs")
        views = _LAST_VIEWS if last else _VIEWS
        self._views = np.array([views.get(post.task, 1.0) for post in posts])
        self._emotion = _opinions(teacher, posts)

    def _encoded(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        encodings = self.tokenizer.encode_batch(list(texts))
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def epoch(self, *, rows: int, rng: np.random.Generator) -> Iterator[tuple[Packed, Targets]]:
        """Yield packed batches of one epoch of the corpora in a new order, with their targets."""
        times = np.floor(self._views + rng.random(len(self._views))).astype(int)
        order = rng.permutation(np.repeat(np.arange(len(times)), times))
        hidden = rng.random(len(self.texts)) < _BARE
        hidden &= np.isin(np.arange(len(hidden)), [*self._signed])
        stream = ((n, self._bare[n] if hidden[n] else self.texts[n]) for n in order.tolist())
        for batch in packed(stream, rows=rows):
            yield batch, self._targets(batch.picked, hidden)

    def _targets(self, picked: Ids, hidden: npt.NDArray[np.bool_]) -> Targets:
        there = picked >= 0
        cut = there & hidden[picked]
        label = np.where(there & (cut | ~self._from_signs[picked]), self._label[picked], -100)
        signs = np.zeros((len(picked), SIGNS), dtype=np.float32)
        for row in np.flatnonzero(cut):
            signs[row] = self._signed[int(picked[row])]
        emotion = np.where(there[:, None], self._emotion[picked], np.float32(0))
        return np.where(there, self._task[picked], 0), label, signs, emotion


def _opinions(teacher: Path | None, posts: Sequence[Post]) -> Shares:
    if teacher is None:
        return np.zeros((len(posts), len(LABELS)), dtype=np.float32)
    return feelings(teacher, posts, hard=0.0)[:-1].astype(np.float32)
