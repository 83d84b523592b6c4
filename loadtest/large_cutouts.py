"""Measure a cut-out of 12 MP beside its mask, for one client, in turns, with the stages of both.

    .venv/bin/python loadtest/large_cutouts.py [--requests N]

Prints the medians in milliseconds, and the median ratio of neighbouring requests (quartiles).
`between` is what no stage names: reading the request, passing arrays between processes, and sending
the reply.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from harness import ROOT, request
from inputs import draw_picture
from load_clients import HttpWay
from peers import server_of_one

from paddlepool.cli.shared import read_version
from paddlepool.models.repository.layout import ModelRepository

OUTPUTS = ("mask", "cutout")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=15, help="of each output")
    count = parser.parse_args().requests
    body = draw_picture(4000, 3000, seed=7).data
    paths = {output: f"/segment?output={output}&format=png" for output in OUTPUTS}
    runs: dict[str, list[dict[str, float]]] = {output: [] for output in OUTPUTS}
    sizes: dict[str, int] = {}
    files = read_version(ModelRepository(ROOT / "model_repo"), "u2netp", None)
    with tempfile.TemporaryDirectory() as scratch, server_of_one(files, Path(scratch)) as served:
        server, group = served
        ways = {
            output: HttpWay(server, request("POST", path, body, content_type="image/jpeg"))
            for output, path in paths.items()
        }
        for turn in range(count + 2):
            for output, way in ways.items():
                reply = way.one()
                stages = reply.stages()
                whole = reply.seconds * 1000
                sizes[output] = len(reply.body)
                if turn > 1:  # the first ones warm up
                    between = whole - sum(stages.values())
                    runs[output].append({"whole": whole, **stages, "between": between})
    ratios = [
        cutout["whole"] / mask["whole"]
        for mask, cutout in zip(runs["mask"], runs["cutout"], strict=True)
    ]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print(f"12 MP, {group}: the cut-out takes {middle:.2f} times its mask ({low:.2f}–{high:.2f})")
    for stage in runs["cutout"][0]:
        mask, cutout = (np.median([run[stage] for run in runs[output]]) for output in OUTPUTS)
        print(f"{stage:>12} {mask:7.1f} {cutout:7.1f} ms")
    print(f"{'file':>12} {sizes['mask'] / 1e6:7.2f} {sizes['cutout'] / 1e6:7.2f} MB")


if __name__ == "__main__":
    main()
