"""Gives the word vectors a start from counts of words that occur near one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix, csr_matrix
from sklearn.utils.extmath import randomized_svd

from training.emotion.vocabulary import MASK

_WINDOW = 4
_SPREAD = 0.02


def factorised(
    texts: Sequence[Sequence[int]], vocabulary: int, width: int
) -> npt.NDArray[np.float32]:
    """Return ``[vocabulary, width]`` vectors: positive mutual information, factorised.

    They have the spread of BERT's random start; the special tokens stay random.
    """
    stream = np.concatenate([np.asarray([*text, *[-1] * _WINDOW]) for text in texts])
    counts: csr_matrix = csr_matrix((vocabulary, vocabulary), dtype=np.float64)
    for distance in range(1, _WINDOW + 1):
        left, right = stream[:-distance], stream[distance:]
        near = (left > MASK) & (right > MASK)
        weights = np.full(int(near.sum()), 1.0 / distance)
        counts += coo_matrix((weights, (left[near], right[near])), counts.shape).tocsr()
    counts = (counts + counts.T).tocoo()
    sums = np.asarray(counts.sum(axis=0)).ravel() + 1.0
    smooth = sums**0.75 / (sums**0.75).sum()
    information = np.log(counts.data / (sums[counts.row] * smooth[counts.col]))
    positive = information > 0
    matrix = csr_matrix(
        (information[positive], (counts.row[positive], counts.col[positive])), shape=counts.shape
    )
    left_vectors, scale, _ = randomized_svd(matrix, width, n_iter=3, random_state=0)
    vectors = left_vectors * np.sqrt(scale)
    vectors *= _SPREAD / vectors.std()
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    longest = 2.5 * _SPREAD * np.sqrt(width)
    vectors *= np.minimum(1.0, longest / np.maximum(norms, 1e-9))
    noise = np.random.default_rng(0).normal(0, _SPREAD / 4, vectors.shape)
    noise[: MASK + 1] *= 4
    result: npt.NDArray[np.float32] = (vectors + noise).astype(np.float32)
    return result
