"""Pre-trains the encoder on all texts; a run ends at a time or a signal and can be resumed."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from training.emotion.beginning import begin
from training.emotion.corruption import Neighbours, corrupted
from training.emotion.embedding import factorised
from training.emotion.learner import Learner, Losses
from training.emotion.lessons import Lessons
from training.emotion.network import LOSSES, Wanted, config
from training.emotion.packing import WIDTH

_SAVE_EVERY = 300
"""Seconds of training."""

_REPORT_EVERY = 25
"""Interval in steps."""

_Arrays = tuple[np.ndarray, ...]


def main() -> None:
    """Command line: see ``--help``; a run is resumed from its newest checkpoint."""
    arguments = _parsed()
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = True  # for Muon, which multiplies in float32
    torch.manual_seed(arguments.seed)
    out: Path = arguments.out
    teacher = out / f"{arguments.teacher}.npz"
    lessons = Lessons(out, teacher=teacher if teacher.is_file() else None, last=arguments.cooldown)
    neighbours = Neighbours(lessons.texts)
    checkpoint = out / f"{arguments.name}.pt"
    learner = _learner(arguments, lessons, checkpoint)
    encoder = learner.network.language.bert
    print(
        f"{sum(parameter.numel() for parameter in encoder.parameters())} encoder parameters, "
        f"{len(lessons.texts)} texts, teacher {teacher.is_file()}, from step {learner.steps}, "
        f"{learner.tokens / 1e6:.2f} M tokens, {learner.seconds / 60:.1f} min",
        flush=True,
    )
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    target = out / f"{arguments.name}-cool.pt" if arguments.cooldown else checkpoint
    report = _Report(learner)
    began = saved = time.perf_counter()
    before = learner.seconds
    seed = (arguments.seed, learner.steps)
    batches = DataLoader(
        _Batches(lessons, neighbours, rows=arguments.rows, seed=seed),
        batch_size=None,
        num_workers=arguments.workers,
        worker_init_fn=_ignore_sigterm,
    )
    there = partial(Tensor.to, device=arguments.device, non_blocking=True)
    for shown, wanted, tokens in batches:
        now = time.perf_counter()
        left = 1 - (now - began) / (60 * arguments.minutes)
        if left <= 0 or ended:
            break
        if now - saved > _SAVE_EVERY and not arguments.cooldown:
            learner.save(target, signs=lessons.signs)
            saved = now
        inputs = (*map(there, shown), Wanted(*map(there, wanted)))
        losses = learner.learn(inputs, share=left if arguments.cooldown else 1.0)
        learner.tokens += tokens
        learner.seconds = before + time.perf_counter() - began
        report.add(losses)
    learner.save(target, signs=lessons.signs)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this run, then it saves")
    parser.add_argument(
        "--cooldown",
        action="store_true",
        help="let the rate fall to 0 over --minutes and write NAME-cool.pt, "
        "what fine-tuning begins from; NAME.pt stays to be gone on with",
    )
    parser.add_argument("--name", default="pretrain", help="of the checkpoint, less .pt")
    parser.add_argument(
        "--teacher", default="linear", help="emotions of every text: file below --out, less .npz"
    )
    parser.add_argument("--begin", type=Path, help="folder of a served version to start from")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--rows", type=int, default=48, help=f"of {WIDTH} tokens, a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that make batches; a GPU needs ten"
    )
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def _learner(arguments: argparse.Namespace, lessons: Lessons, checkpoint: Path) -> Learner:
    """Start from the checkpoint, else a served version, else the corpora's word vectors."""
    pieces = lessons.tokenizer.get_vocab_size()
    shape = config(pieces, layers=arguments.layers, width=arguments.width, dropout=0.0)
    learner = Learner(shape, rate=arguments.rate, device=torch.device(arguments.device))
    bert = learner.network.language.bert
    if checkpoint.exists():
        learner.resume(checkpoint)
    elif arguments.begin:
        begin(bert, lessons.tokenizer, arguments.begin)
    else:
        vectors = torch.from_numpy(factorised(lessons.texts, pieces, arguments.width))
        with torch.no_grad():
            bert.embeddings.word_embeddings.weight.copy_(vectors)
    return learner


class _Batches(IterableDataset[tuple[_Arrays, _Arrays, int]]):
    """Endless stream of freshly corrupted batches.

    Each is the network's first six arguments, the fields of ``Wanted`` and the number of tokens.
    Each worker process reads all texts in an order of its own.
    """

    def __init__(
        self, lessons: Lessons, neighbours: Neighbours, *, rows: int, seed: tuple[int, int]
    ) -> None:
        self._lessons, self._neighbours = lessons, neighbours
        self._rows, self._seed = rows, seed

    def __iter__(self) -> Iterator[tuple[_Arrays, _Arrays, int]]:
        worker = get_worker_info()
        rng = np.random.default_rng((*self._seed, worker.id if worker else 0))
        while True:
            for batch, targets in self._lessons.epoch(rows=self._rows, rng=rng):
                changed = corrupted(batch, self._neighbours, rng)
                shown = (changed.ids, batch.owner, batch.place)
                yield (
                    (*shown, changed.hidden, changed.wanted, changed.replaced),
                    (batch.first, *targets),
                    int((batch.owner >= 0).sum()),
                )


def _ignore_sigterm(_: int) -> None:
    """Let a worker ignore SIGTERM: ``timeout`` sends it to the whole process group.

    The parent saves what was learnt and then ends its workers by a message.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Report:
    """A line every few steps: the mean losses since the last one, and the speed of this run."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._tokens, self._seconds = learner.tokens, learner.seconds
        self._losses: list[Losses] = []

    def add(self, losses: Losses) -> None:
        learner = self._learner
        self._losses.append(losses)
        if learner.steps % _REPORT_EVERY:
            return
        means = zip(LOSSES, np.mean(self._losses, axis=0), strict=True)
        self._losses.clear()
        speed = (learner.tokens - self._tokens) / (learner.seconds - self._seconds)
        print(
            f"step {learner.steps} {learner.tokens / 1e6:.2f} M tokens "
            f"{learner.seconds / 60:.1f} min "
            + " ".join(f"{name} {value:.4f}" for name, value in means)
            + f" {speed:.0f} tokens/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
