"""Measure image classification on this server and on PaddleX's basic serving, with one model.

    .venv/bin/python loadtest/paddlex_classify.py [--rounds N] [--seconds S] [--clients N]
                                                  [--environment DIR]

The model is MobileNetV2 with random weights, exported here with an `inference.yml`: a network's
speed does not depend on its weights. The bias of its classes is random, too, so that it decides for
one of them as clearly as a trained network. Both servers have the same cores and the same priority,
and get the same requests: `POST /image-classification` with a JPEG in base64, of 0.2 MP (ImageNet's
usual size) and of 1 MP. A third line has the same picture as the body of `/classify`. This server
has chosen its group; in the last line, only among groups of float32, in which PaddleX computes.

They take turns in one run, in an order that changes with each round, so that a busy machine slows
both. PaddleX 3.7.2 is installed once into an environment of its own; `paddlex_serving.py` repairs
a fault of it, without which it answers every request with 500.
"""

import argparse
import base64
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from cases import wait_chosen
from harness import Server, free_port, json_request, request, running_program, running_server
from inputs import draw_picture
from load_clients import HttpWay
from pages import digits, markdown_table
from strangers import CACHE

from paddlepool.cli.paddlex import import_folder
from paddlepool.engine.backends.process import NICE
from paddlepool.observability.build_info import describe_machine

PACKAGES = ("paddlex[cv,serving]==3.7.2", "paddlepaddle==3.2.2")
MODEL = "MobileNetV2_x1_0"
SIDE, CLASSES = 224, 1000
BIAS = 3.0
"""Standard deviation of the classes' bias."""
SIZES = (500, 375), (1152, 868)
"""Width and height of the pictures: ImageNet's usual size, and 1 MP."""
NORMALIZE = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "scale": 1 / 255,
    "channel_num": 3,
    "order": "",
}
INFERENCE = {
    "Global": {"model_name": MODEL},
    "PreProcess": {
        "transform_ops": [
            {"ResizeImage": {"resize_short": 256}},
            {"CropImage": {"size": SIDE}},
            {"NormalizeImage": NORMALIZE},
            {"ToCHWImage": None},
        ]
    },
    "PostProcess": {"Topk": {"topk": 5, "label_list": [f"class {i}" for i in range(CLASSES)]}},
}
PROGRAM = Path(__file__).parent / "peer_programs" / "paddlex_serving.py"
START_SECONDS = 180.0
TOLERANCE = 0.02
"""Largest difference of two scores, of which one may be computed in bfloat16."""


def export(directory: Path) -> None:
    """Write the program, its weights and its inference.yml to `directory`."""
    import paddle

    paddle.seed(1)
    network = paddle.nn.Sequential(
        paddle.vision.models.mobilenet_v2(num_classes=CLASSES), paddle.nn.Softmax()
    )
    network.eval()
    network[0].classifier[1].bias.set_value(paddle.randn([CLASSES]) * BIAS)
    spec = paddle.static.InputSpec([None, 3, SIDE, SIDE], "float32", "x")
    paddle.jit.save(network, str(directory / "inference"), input_spec=[spec])
    (directory / "inference.yml").write_text(yaml.safe_dump(INFERENCE), "utf-8")


def install(environment: Path) -> Path:
    """Return the environment's bin directory; install PaddleX unless it is there."""
    if not (environment / "installed").exists():
        print(f"installing {PACKAGES[0]} into {environment}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (environment / "installed").touch()
    return environment / "bin"


def pipeline_of(folder: Path) -> dict[str, object]:
    """Return PaddleX's description of the pipeline with the model of this folder."""
    name = "image_classification"
    module: dict[str, object] = {"module_name": name, "model_name": MODEL, "model_dir": str(folder)}
    module |= {"batch_size": 4, "topk": 5}
    return {"pipeline_name": name, "SubModules": {"ImageClassification": module}}


def check_equal(own: Server, paddlex: Server, body: bytes) -> None:
    """Raise RuntimeError unless both return the same classes with equal scores."""
    ours, theirs = (categories(server, body) for server in (own, paddlex))
    for (number, score), (other, expected) in zip(ours, theirs, strict=True):
        if number != other or abs(score - expected) > TOLERANCE:
            raise RuntimeError(f"the answers differ: {ours} and {theirs}")


def categories(server: Server, body: bytes) -> list[tuple[int, float]]:
    """Number and score of each class in the reply to a request."""
    reply = json.loads(HttpWay(server, body).one().body)
    return [(item["id"], item["score"]) for item in reply["result"]["categories"]]


def measure(
    ways: Mapping[str, HttpWay], *, rounds: int, seconds: float, clients: int
) -> dict[str, list[float]]:
    """Return pictures a second of each way and round; each way runs in each round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way.rate(clients=clients, seconds=1)
    for number in range(rounds):
        names = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in names:
            rates[name].append(ways[name].rate(clients=clients, seconds=seconds))
    return rates


def ways_of(own: Server, exact: Server, paddlex: Server, jpeg: bytes) -> dict[str, HttpWay]:
    """Return the requests to compare. Raises RuntimeError if the two servers' labels differ."""
    encoded = base64.b64encode(jpeg).decode()
    body = json_request("/image-classification", {"image": encoded, "visualize": False})
    check_equal(own, paddlex, body)
    raw = request("POST", "/classify", jpeg, content_type="image/jpeg")
    return {
        "PaddleX 3.7.2, `/image-classification`": HttpWay(paddlex, body),
        "Paddlepool, `/image-classification`": HttpWay(own, body),
        "Paddlepool, `/classify`": HttpWay(own, raw),
        "Paddlepool, `/classify`, float32": HttpWay(exact, raw),
    }


def table(rates: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    """Yield a row of each way; the ratios are those to the first way."""
    first = next(iter(rates.values()))
    for name, values in rates.items():
        ratios = [value / other for value, other in zip(values, first, strict=True)]
        times = f"{digits(statistics.median(ratios))} ({digits(min(ratios))} to "
        times += f"{digits(max(ratios))})"
        yield [name, digits(statistics.median(values)), times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each server in each round")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--environment", type=Path, default=CACHE.parent / "paddlex-serving-3.7.2")
    options = parser.parse_args()
    bin = install(options.environment)
    with tempfile.TemporaryDirectory() as directory:
        folder, models = Path(directory) / MODEL, Path(directory) / "models"
        folder.mkdir()
        export(folder)
        import_folder(folder, models, source="random weights", licence="CC0-1.0")
        pipeline = Path(directory) / "pipeline.yaml"
        pipeline.write_text(yaml.safe_dump(pipeline_of(folder)), "utf-8")
        port = free_port()
        command = [
            "nice",
            "-n",
            NICE,
            bin / "python",
            PROGRAM,
            "--serve",
            "--pipeline",
            pipeline,
            "--device",
            "cpu",
        ]
        peer = running_program(
            [*command, "--host", "127.0.0.1", "--port", port],
            port,
            path="/health",
            environment={"PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK": "True"},
            timeout=START_SECONDS,
        )
        # The server has chosen its group before the other server takes processor time.
        rows, servers, groups = [], [], []
        with contextlib.ExitStack() as stack:
            for precision in ("auto", "exact"):
                settings = {"PADDLEPOOL_PROVE_GROUPS": "started", "PADDLEPOOL_PRECISION": precision}
                servers.append(stack.enter_context(running_server(models, environment=settings)))
                [choice] = wait_chosen(servers[-1])
                groups.append(choice["group"])
            paddlex = stack.enter_context(peer)
            own, exact = servers
            for width, height in SIZES:
                jpeg = draw_picture(width, height, seed=7).data
                ways = ways_of(own, exact, paddlex, jpeg)
                rates = measure(
                    ways, rounds=options.rounds, seconds=options.seconds, clients=options.clients
                )
                size = f"{width} × {height}, {len(jpeg) // 1000} kB"
                rows += [[size, *row] for row in table(rates)]
    machine = describe_machine(cores=len(os.sched_getaffinity(0)))
    print(f"{options.clients} clients; {machine}")
    load = os.getloadavg()[0]
    print(f"load of the machine {load:.1f}; groups {' and '.join(groups)}; the same five labels")
    head = ["picture", "server", "pictures/s, median", "times PaddleX, by round"]
    print(markdown_table(head, rows))


if __name__ == "__main__":
    main()
