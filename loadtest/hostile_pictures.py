"""Post hostile pictures and mutants to a real server, with good pictures in between.

    .venv/bin/python loadtest/hostile_pictures.py [--mutants 8000] [--corpus DIR]

The corpus is a directory of pictures with a MANIFEST.json; tests/e2e checks the answers against it.
Exit code 1: a 5xx other than 503 with Retry-After; a good picture whose bytes differ from those of
an undisturbed server; a lost process; an API process whose memory grows over the mutants.
"""

import argparse
import json
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases import mask_request
from harness import ROOT, Reply, ask, descendants, resident_bytes, running_server
from inputs import draw_picture
from soak_traffic import Asked, Traffic
from tqdm import tqdm

CORPUS = ROOT / ".." / "shared" / "data" / "hostile_images"
CLIENTS = 3
WORDS = (b"\xff", b"\0", b"\xff\xda", b"\xff\xff\xff\xff", b"\x7f\xff", b"-1", b"1e999", b"[", b'"')
MIB = 1 << 20
MOST_GROWN_MIB = 15
ENVIRONMENT = {
    # The clients make the machine slow; latency is not judged here.
    "PADDLEPOOL_CODEC_TIMEOUT_SECONDS": "60",
    "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000",
}


def mutant(body: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut or duplicate a piece, or insert a keyword, up to four times."""
    mutated = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        end = min(len(mutated), at + chance.randint(1, 16))
        match chance.randrange(4):
            case 0 if at < len(mutated):
                mutated[at] ^= 1 << chance.randrange(8)
            case 1:
                del mutated[at:end]
            case 2:
                mutated[at:at] = mutated[at:end]
            case _:
                word = chance.choice(WORDS)
                mutated[at : at + len(word)] = word
    return bytes(mutated)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--mutants", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    names = json.loads((given.corpus / "MANIFEST.json").read_text("utf-8"))
    files = [(given.corpus / name).read_bytes() for name in names]
    chance = random.Random(given.seed)
    mutants = [mutant(files[number % len(files)], chance) for number in range(given.mutants)]
    faults: list[str] = []
    with running_server(ROOT / "model_repo", environment=ENVIRONMENT) as server:

        def post(body: bytes) -> Reply:
            return ask(server.port, mask_request(body), timeout=90)

        before = set(descendants(server.pid))
        good = Traffic(
            server.port, [Asked("good", mask_request(draw_picture(320, 240, seed=1).data))]
        )
        with good.users(1, pause=0.2), ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(post, files))
            settled = resident_bytes(server.pid) / MIB
            statuses: Counter[int] = Counter()
            replies = clients.map(post, mutants)
            for reply in tqdm(replies, total=len(mutants), unit="mutant", disable=None):
                statuses[reply.status] += 1
                refused = reply.status == 503 and "retry-after" in reply.headers
                if reply.status >= 500 and not refused:
                    faults.append(f"a mutant got {reply.status}: {reply.body[:200]!r}")
        grown = resident_bytes(server.pid) / MIB - settled
        lost = before - set(descendants(server.pid))
    if grown > MOST_GROWN_MIB:
        faults.append(f"the API process grew by {grown:.0f} MiB")
    if lost:
        faults.append(f"{len(lost)} processes were lost")
    faults += good.tally.wrong + [f"a good picture: {each.reason}" for each in good.tally.lost]
    if not good.tally.right:
        faults.append("no good picture was answered")
    print(f"{len(mutants)} mutants: {dict(statuses)}")
    beside = f"{good.tally.right} right, {len(good.tally.refused)} refused"
    print(f"good pictures beside: {beside}; {len(lost)} of {len(before)} processes lost")
    print(f"API process: {settled:.0f} MiB after the corpus, {grown:+.0f} MiB after the mutants")
    for fault in faults:
        print(f"MISSED {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
