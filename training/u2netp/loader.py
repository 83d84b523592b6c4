"""Makes batches of augmented samples in order, in this process or ahead of time in others."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

import cv2
import numpy as np
import torch
from torch import Tensor

from training.u2netp.augment import Samples
from training.u2netp.data import IMAGENET_MEAN, IMAGENET_STD, Pixels

Batch = tuple[Pixels, Pixels]

_adopted: list[Samples] = []
"""What a loader process makes samples from; empty in the training process."""


def _adopt(samples: Samples) -> None:
    _adopted.append(samples)


def _stack(samples: Samples, numbers: range) -> Batch:
    pictures, targets = zip(*(samples[number] for number in numbers), strict=True)
    return np.stack(pictures), np.stack(targets)


def _make(numbers: range) -> Batch:
    return _stack(_adopted[-1], numbers)


def _batches(samples: Samples, batches: Sequence[range], workers: int) -> Iterator[Batch]:
    if not workers:
        for numbers in batches:
            yield _stack(samples, numbers)
        return
    # Forked processes share the pictures in memory. Batches come back as bytes through pipes,
    # because a container's shared memory is often smaller than a few batches.
    # OpenCV's own threads would not survive the fork: a child that counts on them waits for ever.
    cv2.setNumThreads(0)
    fork = multiprocessing.get_context("fork")
    ahead: deque[Future[Batch]] = deque()
    pool = ProcessPoolExecutor(workers, fork, initializer=_adopt, initargs=(samples,))
    with pool:
        try:
            for numbers in batches:
                ahead.append(pool.submit(_make, numbers))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def load(
    samples: Samples, batches: Sequence[range], *, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield uint8 pictures N×S×S×3 and targets N×7×S×S for batches of sample numbers."""
    for pictures, targets in _batches(samples, batches, workers):
        yield torch.from_numpy(pictures), torch.from_numpy(targets)


def to_input(pictures: Tensor) -> Tensor:
    """The official normalisation of N×S×S×3 uint8 RGB on its own device: float32 N×3×S×S."""
    scaled = pictures.permute(0, 3, 1, 2).float()
    scaled = scaled / scaled.amax((1, 2, 3), keepdim=True).clamp(min=1)
    mean = torch.from_numpy(IMAGENET_MEAN).to(scaled.device)[:, None, None]
    deviation = torch.from_numpy(IMAGENET_STD).to(scaled.device)[:, None, None]
    return (scaled - mean) / deviation
