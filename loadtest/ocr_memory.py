"""Read pages of many sizes with a server of its own, and print how its memory grows.

    .venv/bin/python loadtest/ocr_memory.py ../shared/data/ocr/images --repository DIR

Pictures of the folder are scaled so that no two pages have the same size. The memory is the
proportional set size of the server's processes: at the start, after a tenth of the pages, and at
the end. The first page is read alone and timed. The server compares no groups, because that opens
further predictors. Exit code 1: it grew by more than GROWTH between the last two, or a page failed.
`--pages 0` prints only the memory at the start, of any repository.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import cv2
from harness import memory_of, request, running_server, send
from tqdm import tqdm

GROWTH = 1.3
SIDES = 240, 1000
"""Least and largest longer side of a page."""
TIMEOUT_MS = 30_000


def pages(folder: Path, count: int) -> Iterator[bytes]:
    """Yield `count` pictures as JPEG, each of another size, in an order that a seed fixes."""
    files = [cv2.imread(str(file)) for file in sorted(folder.iterdir())]
    pictures = [picture for picture in files if picture is not None]
    draw, sizes = random.Random(1), set[tuple[int, int]]()
    for picture in cycle(pictures):
        if len(sizes) == count:
            return
        scale = draw.randint(*SIDES) / max(picture.shape[:2])
        scaled = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        if scaled.shape[:2] not in sizes:
            sizes.add(scaled.shape[:2])
            yield cv2.imencode(".jpg", scaled)[1].tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--repository", type=Path, help="by default, that of the checkout")
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--predictor", help="instance groups, as detect:NAME,recognise:NAME")
    arguments = parser.parse_args()
    path = f"/ocr?timeout_ms={TIMEOUT_MS}"
    if arguments.predictor:
        path += f"&predictor={arguments.predictor}"

    def read(port: int, page: bytes) -> int:
        message = request("POST", path, page, content_type="image/jpeg")
        return send(port, message, timeout=TIMEOUT_MS / 1000 + 10).status

    early = max(1, arguments.pages // 10)
    memory: list[int] = []
    statuses: list[int] = []
    with (
        running_server(arguments.repository) as server,
        ThreadPoolExecutor(arguments.clients) as clients,
        tqdm(total=arguments.pages, leave=False, disable=None) as progress,
    ):
        print(f"at the start: {memory_of(server.pid) >> 20} MiB", flush=True)
        if not arguments.pages:
            return 0
        rest = pages(arguments.images, arguments.pages)
        began = time.perf_counter()
        statuses.append(read(server.port, next(rest)))
        print(f"first page: {time.perf_counter() - began:.2f} s", flush=True)
        for count in (early, arguments.pages):
            # At most as many pages as clients are in memory.
            while portion := list(islice(rest, min(arguments.clients, count - len(statuses)))):
                statuses += clients.map(read, [server.port] * len(portion), portion)
                progress.update(len(portion))
            memory.append(memory_of(server.pid))
            print(f"after {len(statuses)} pages: {memory[-1] >> 20} MiB", flush=True)
    failed = Counter(status for status in statuses if status != 200)
    growth = memory[1] / memory[0]
    print(f"growth {growth:.2f}, at most {GROWTH}; failed pages by status: {dict(failed)}")
    return int(growth > GROWTH or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
