"""Train the linear digit classifier and show that its static graph predicts the same."""

import argparse
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from safetensors.numpy import save_file

from paddlepool.models.networks import LinearDigits
from training.mnist.data import Split, load_mnist


def train(network: LinearDigits, split: Split, *, epochs: int, seed: int) -> None:
    """Stochastic gradient descent on cross entropy, batches of 64."""
    optimizer = paddle.optimizer.SGD(learning_rate=0.02, parameters=network.parameters())
    random = np.random.default_rng(seed)
    for epoch in range(epochs):
        losses = []
        for batch in np.array_split(random.permutation(len(split.labels)), len(split.labels) // 64):
            logits = network(paddle.to_tensor(split.images[batch]))
            loss = F.cross_entropy(logits, paddle.to_tensor(split.labels[batch]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}")


def predict(network: paddle.nn.Layer, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 logits [N,10]."""
    network.eval()
    with paddle.no_grad():
        logits: NDArray[np.float32] = network(paddle.to_tensor(images)).numpy()
    return logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mnist"))
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    paddle.seed(args.seed)
    learn, test = load_mnist(args.data)
    network = LinearDigits()
    train(network, learn, epochs=args.epochs, seed=args.seed)

    args.out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.numpy() for name, value in network.state_dict().items()},
        args.out / "mnist.safetensors",
    )
    paddle.jit.save(network, str(args.out / "static" / "inference"))
    loaded = paddle.jit.load(str(args.out / "static" / "inference"))

    static = predict(network, test.images)  # forward is decorated with @to_static
    network.forward.rollback()  # and now it is the dynamic graph
    dynamic = predict(network, test.images)
    saved = predict(loaded, test.images)
    difference = max(float(np.abs(dynamic - other).max()) for other in (static, saved))
    accuracy = float((dynamic.argmax(1) == test.labels).mean())
    print(f"test accuracy {accuracy:.4f} on {len(test.labels)} digits")
    print(f"dynamic, to_static and jit.load differ by at most {difference:.1e}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
