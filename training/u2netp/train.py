"""Trains U²-Netp from random weights, resumably, and exports the averaged weights.

    python -m training.u2netp.train --data ../shared/data/sod_train \
        --soft runs/u2netp/soft.npz --out runs/u2netp --phases 112x38000x8,160x17000x8

A phase is side × pictures × batch. The learning rate follows one warm-up and one cosine over
all phases, measured in pixels computed, so that it falls evenly in time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import cv2
import torch

from training.u2netp.augment import Recipe
from training.u2netp.data import DataError, read, write_pack
from training.u2netp.evaluate import evaluate_network
from training.u2netp.network import U2Netp
from training.u2netp.trainer import Settings, Trainer, parse_phases


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` fill a file beside `path`, then put it in place in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write(temporary)
    temporary.replace(path)


def export(network: U2Netp, path: Path, *, note: dict[str, str]) -> None:
    """Write float32 safetensors with upstream names, batch normalisation not folded."""
    from safetensors.torch import save_file

    state = {
        name: value.detach().float().cpu().contiguous()
        for name, value in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }

    def write(temporary: Path) -> None:
        save_file(state, temporary, metadata=note)
        temporary.chmod(0o644)  # safetensors writes for its owner alone; others serve the file

    replace_file(path, write)


class Run:
    """One process's training: the loop, its checkpoints, its log and its best weights."""

    def __init__(self, trainer: Trainer, out: Path, *, calibrate: int, sharpen: float) -> None:
        self.trainer = trainer
        self.out = out
        self.calibrate = calibrate
        self.sharpen = sharpen
        self.seconds = 0.0
        metrics = out / "metrics.json"
        self.best = json.loads(metrics.read_text())["normalised"]["iou"] if metrics.exists() else 0

    def checkpoint(self) -> None:
        """Save the state, in one step."""
        state = self.trainer.state() | {"seconds": self.seconds}
        replace_file(self.out / "checkpoint.pt", lambda path: torch.save(state, path))

    def evaluate(self) -> None:
        """Measure the calibrated average; export it if its validation IoU is the best so far."""
        trainer = self.trainer
        network = trainer.calibrated(pictures=self.calibrate, sharpen=self.sharpen)
        quality = evaluate_network(network, trainer.corpus, bf16=trainer.settings.bf16)
        better = quality["normalised"].iou > self.best
        record = {kind: asdict(value) for kind, value in quality.items()} | {
            "seen": trainer.seen,
            "steps": trainer.steps,
            "seconds": round(self.seconds),
            "seed": trainer.settings.seed,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with (self.out / "history.jsonl").open("a") as log:
            log.write(json.dumps(record | {"best": better}) + "\n")
        print(
            f"  {trainer.seen} pictures: {quality['normalised']}{' *' if better else ''}",
            flush=True,
        )
        if better:
            self.best = quality["normalised"].iou
            note = {"seen": str(trainer.seen), "seed": str(trainer.settings.seed)}
            export(network, self.out / "u2netp.safetensors", note=note)
            text = json.dumps(record, indent=1) + "\n"
            replace_file(self.out / "metrics.json", lambda path: path.write_text(text))

    def go(self, *, workers: int, checkpoint_s: float, evaluate_s: float) -> None:
        """Train to the end of the schedule."""
        trainer, losses = self.trainer, []
        begun = saved = measured = shown = time.monotonic()
        before, shown_seen = self.seconds, trainer.seen
        for pictures, targets in trainer.batches(workers=workers):
            losses.append(trainer.step(pictures, targets))
            if trainer.rank:
                continue
            now = time.monotonic()
            self.seconds = before + now - begun
            if now - shown >= 30:
                speed = (trainer.seen - shown_seen) / (now - shown)
                print(
                    f"{trainer.seen}/{trainer.settings.pictures} side {targets.shape[-1]}"
                    f" loss {sum(losses) / len(losses):.4f}"
                    f" rate {trainer.settings.rate_at(trainer.seen):.2e}"
                    f" {speed:.1f} pictures/s {self.seconds:.0f} s",
                    flush=True,
                )
                losses, shown, shown_seen = [], now, trainer.seen
            if now - saved >= checkpoint_s:
                self.checkpoint()
                saved = now
            if now - measured >= evaluate_s:
                self.evaluate()
                measured = shown = time.monotonic()
                shown_seen = trainer.seen
        if trainer.rank:
            return
        self.checkpoint()
        self.calibrate *= 4
        self.evaluate()


def train(rank: int, args: argparse.Namespace) -> None:
    """Train as one of `args.ranks` processes; rank 0 alone writes files."""
    if args.ranks > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{args.out.resolve()}/ranks",
            rank=rank,
            world_size=args.ranks,
        )
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    corpus = read(args.data, soft=args.soft)
    truth = args.truth if corpus.soft_fused is not None else 1.0
    settings = Settings(
        args.phases,
        args.seed,
        args.rate,
        ema=args.ema,
        recipe=replace(Recipe(), truth=truth),
        bf16=not args.fp32,
    )
    trainer = Trainer(corpus, settings, device=args.device, rank=rank, ranks=args.ranks)
    run = Run(trainer, args.out, calibrate=args.calibrate, sharpen=args.sharpen)
    saved = args.out / "checkpoint.pt"
    if saved.is_file() and not args.fresh:
        state = torch.load(saved, map_location=args.device, weights_only=True)
        trainer.restore(state)
        run.seconds = state["seconds"]
        print(f"resumed after {trainer.seen} pictures", flush=True)
    run.go(workers=args.workers, checkpoint_s=args.checkpoint_s, evaluate_s=args.evaluate_s)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with images/ and masks/, or a packed npz")
    add("--soft", type=Path, help="soft targets made by training.u2netp.teacher")
    add("--out", type=Path, help="folder for checkpoint, weights and logs")
    add("--pack", type=Path, metavar="FILE", help="write all data as one npz, then stop")
    add("--phases", type=parse_phases, default=parse_phases("112x38000x8,160x17000x8"))
    add("--seed", type=int, default=20)
    add("--rate", type=float, default=2e-3, help="peak learning rate")
    add("--ema", type=float, default=0.998, help="share the average keeps at each step")
    add("--truth", type=float, default=0.5, help="share of ground truth in a target")
    add("--fp32", action="store_true", help="no bfloat16 autocast")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--ranks", type=int, default=1, help="processes that share each batch (CPU)")
    add("--threads", type=int, default=1, help="of each rank; ranks beat threads on a busy machine")
    add("--workers", type=int, default=0, help="loader processes; 0 loads between steps")
    add("--checkpoint-s", type=float, default=300)
    add("--evaluate-s", type=float, default=600)
    add("--calibrate", type=int, default=64, help="pictures for batch statistics; ×4 at the end")
    add("--sharpen", type=float, default=2.0, help="factor on the exported fused logits")
    add("--fresh", action="store_true", help="ignore a checkpoint in --out")
    args = parser.parse_args()
    try:
        if args.pack:
            corpus = read(args.data, soft=args.soft)
            size = write_pack(corpus, args.pack)
            print(f"{args.pack}: {len(corpus.names)} pairs, {size / 2**20:.1f} MiB")
            return
        if not args.out:
            parser.error("--out is needed to train")
        if any(phase.batch % args.ranks for phase in args.phases):
            parser.error(f"every batch must be a multiple of --ranks {args.ranks}")
        args.out.mkdir(parents=True, exist_ok=True)
        if args.ranks == 1:
            train(0, args)
        else:
            (args.out / "ranks").unlink(missing_ok=True)
            torch.multiprocessing.spawn(train, (args,), nprocs=args.ranks)
    except DataError as error:
        raise SystemExit(f"training.u2netp: {error}") from None


if __name__ == "__main__":
    main()
