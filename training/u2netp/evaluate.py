"""Prints MAE, max-F and IoU@0.5 on the validation pairs at 320×320, for weights and baselines.

    python -m training.u2netp.evaluate --data ../shared/data/sod_train \
        --weights runs/u2netp/u2netp.safetensors --baselines

`--weights` also takes a training checkpoint (`.pt`, whose averaged weights are used), an `.npz`
with the same names, or an `.onnx` whose first output is the fused map.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import torch

from paddlepool.tasks.codecs.picture import Floats
from paddlepool.tasks.segment.evaluation import MaskScores, measure
from training.u2netp.data import SIDE, Corpus, Pixels, normalise, read
from training.u2netp.network import U2Netp


def stretch(mask: Floats) -> Floats:
    """Min-max normalise as the official inference does; a constant map becomes zero."""
    low, high = float(mask.min()), float(mask.max())
    return (mask - low) / (high - low) if high > low else np.zeros_like(mask)


def load_network(path: Path) -> U2Netp:
    """Read weights with upstream names from .safetensors, .npz or a training checkpoint .pt."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such weight file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            state = {name: torch.from_numpy(archive[name]) for name in archive.files}
    elif path.suffix == ".pt":
        state = torch.load(path, map_location="cpu", weights_only=True)["ema"]
    else:
        raise SystemExit(f"{path}: expected .safetensors, .npz, .pt or .onnx")
    network = U2Netp()
    # Exports leave out the batch counters, which inference never reads.
    network.load_state_dict(network.state_dict() | state)
    return network.eval()


def network_maps(
    network: U2Netp, pictures: Pixels, *, batch: int = 4, bf16: bool = False
) -> list[Floats]:
    """Fused maps N×(320×320) in 0…1 of N×320×320×3 pictures, on the network's own device."""
    device = next(network.parameters()).device
    maps: list[Floats] = []
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for start in range(0, len(pictures), batch):
            inputs = np.stack([normalise(p) for p in pictures[start : start + batch]])
            tensor = torch.from_numpy(inputs).to(device, memory_format=torch.channels_last)
            maps += list(torch.sigmoid(network(tensor)[0].float())[:, 0].cpu().numpy())
    return maps


def resized_maps(network: U2Netp, pictures: Pixels, side: int) -> list[Floats]:
    """Maps at 320×320 when the network sees the pictures at side×side, as in early training."""
    small = np.stack([cv2.resize(p, (side, side), interpolation=cv2.INTER_AREA) for p in pictures])
    return [
        np.asarray(cv2.resize(one, (SIDE, SIDE)), np.float32)
        for one in network_maps(network, small)
    ]


def _onnx_maps(path: Path, pictures: Pixels, *, threads: int) -> list[Floats]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [session.run(None, {name: normalise(p)[None]})[0][0, 0] for p in pictures]


def evaluate_network(network: U2Netp, corpus: Corpus, *, bf16: bool) -> dict[str, MaskScores]:
    """Quality of the raw and of the min-max normalised fused map on the validation pairs."""
    rows = corpus.validation
    maps = network_maps(network, corpus.pictures[rows], bf16=bf16)
    masks = corpus.masks[rows]
    return {
        "raw": measure(maps, masks),
        "normalised": measure([stretch(one) for one in maps], masks),
    }


def main() -> None:
    """Command line; see the module's docstring."""
    from paddlepool.tasks.segment.evaluation import BASELINES

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder or packed .npz")
    parser.add_argument("--weights", type=Path, action="append", default=[])
    parser.add_argument("--baselines", action="store_true", help="also the three trivial masks")
    parser.add_argument("--side", type=int, default=SIDE, help="of the input; not for .onnx")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = read(args.data)
    rows = corpus.validation
    groups = {"all": rows}
    for source in ("ecssd", "pascals"):
        chosen = np.array([r for r in rows if corpus.names[r].startswith(source)], np.int64)
        if len(chosen):
            groups[source] = chosen
    report: dict[str, dict[str, float]] = {}

    def show(label: str, maps: dict[int, Floats]) -> None:
        for group, members in groups.items():
            quality = measure([maps[r] for r in members], corpus.masks[members])
            report[f"{label} {group}"] = asdict(quality)
            print(f"{label:<32} {group:<8} {quality}", flush=True)

    for path in args.weights:
        if path.suffix == ".onnx":
            raw = _onnx_maps(path, corpus.pictures[rows], threads=args.threads)
        else:
            network = load_network(path).to(memory_format=torch.channels_last)
            raw = (
                network_maps(network, corpus.pictures[rows])
                if args.side == SIDE
                else resized_maps(network, corpus.pictures[rows], args.side)
            )
        show(f"{path.name} raw", dict(zip(rows.tolist(), raw, strict=True)))
        show(
            f"{path.name} normalised",
            {row: stretch(one) for row, one in zip(rows.tolist(), raw, strict=True)},
        )
    if args.baselines:
        baseline: Callable[[Pixels], Floats]
        for label, baseline in BASELINES.items():
            show(label, {row: baseline(corpus.pictures[row]) for row in rows.tolist()})
    if args.json:
        args.json.write_text(json.dumps({"side": args.side, "quality": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
