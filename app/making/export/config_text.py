"""The config.toml that a new model starts with; measured on two cores with Paddle 3.2.2."""

from collections.abc import Sequence

_GROUPS = """
# `base` is the group that one must differ from, in outputs or in time, to be called effective.
[[instance_group]]
name = "onednn"
backend = "paddle_inference"
count = "cores"
threads = 1
base = "native"
[instance_group.options]
onednn = true
{cache}
{alone}
# What follows starts when it is first asked for or chosen as the default group, and is measured by
# `paddlepool compare`. Groups that this machine cannot run are refused with their reason; one with
# `candidate = false` is there for comparison alone and never chosen.
[[instance_group]]
name = "dygraph"
backend = "paddle_dygraph"
start = "on_demand"
candidate = false

[[instance_group]]
name = "jit"
backend = "paddle_jit"
start = "on_demand"
candidate = false
base = "dygraph"

[[instance_group]]
name = "native"
backend = "paddle_inference"
start = "on_demand"
candidate = false
[instance_group.options]
onednn = false

[[instance_group]]
name = "onednn_t2"
backend = "paddle_inference"
threads = 2
start = "on_demand"
[instance_group.options]
{cache}

[[instance_group]]
name = "onednn_bf16"
backend = "paddle_inference"
start = "on_demand"
budget = {budget}    # bfloat16 keeps 8 bits of each number
[instance_group.options]
bfloat16 = true
{cache}

[[instance_group]]
name = "onnxruntime"
backend = "onnxruntime"
start = "on_demand"

[[instance_group]]
name = "openvino"
backend = "openvino"
start = "on_demand"

# The derived program `int8` of the version, where it has one.
[[instance_group]]
name = "onnxruntime_int8"
backend = "onnxruntime"
program = "int8"
start = "on_demand"
budget = {budget}

[[instance_group]]
name = "openvino_int8"
backend = "openvino"
program = "int8"
start = "on_demand"
budget = {budget}
{pairs}
[[instance_group]]
name = "gpu"
backend = "paddle_inference"
start = "on_demand"
[instance_group.options]
device = "gpu"

[[instance_group]]
name = "gpu_fp16"
backend = "paddle_inference"
start = "on_demand"
base = "gpu"
budget = {budget}
[instance_group.options]
device = "gpu"
float16 = true
"""

_ONE_SHAPE = "cache_capacity = 1          # every input has one shape"

_PAIRS = """
# Both cores of a pair on one picture: as many pictures a second, and one alone in half the time.
[[instance_group]]
name = "openvino_int8_t2"
backend = "openvino"
threads = 2
program = "int8"
start = "on_demand"
budget = {budget}
"""

_ALONE = """
# As onednn, but a text alone, which oneDNN's cost for each operator would slow down, runs on
# Paddle's own kernels: a second copy of the weights.
[[instance_group]]
name = "mixed"
backend = "paddle_inference"
start = "on_demand"
[instance_group.options]
onednn_rows = 2
{cache}
"""

_MASKS = "{ mean_difference = 0.015, agreement = 0.95 }"
_LABELS = "{ mean_difference = 0.1, agreement = 1.0 }"

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

_CHINESE = {
    "angry": "愤怒",
    "happy": "快乐",
    "neutral": "平静",
    "surprise": "惊讶",
    "sad": "悲伤",
    "fear": "恐惧",
}


def segment_config(side: int) -> str:
    groups = _GROUPS.format(
        budget=_MASKS, cache=_ONE_SHAPE, alone="", pairs=_PAIRS.format(budget=_MASKS)
    )
    return f"""pipeline = "segment"
default_group = "auto"       # the server measures which is the fastest here

[dynamic_batching]
max_batch_size = 1          # measured: a batch costs as much as its pictures one by one
max_queue_delay_ms = 0
max_queue_size = 16
{groups}
[[warmup]]
shapes = {{ input = [1, 3, {side}, {side}] }}

[parameters]
size = {side}
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""


def sentiment_config(*, labels: Sequence[str], pad_id: int, positions: int) -> str:
    buckets = [length for length in BUCKETS if length <= positions]
    names = ", ".join(f'"{label}"' for label in labels)
    chinese = ", ".join(f'"{_CHINESE.get(label, label)}"' for label in labels)
    warmups = "\n".join(
        f"[[warmup]]\nshapes = {{ input_ids = [1, {length}], attention_mask = [1, {length}] }}\n"
        for length in buckets
    )
    # Every pair of batch size and bucket is a shape. In a cache for only some of them, each shape
    # would hold its own packed weights, and be dropped and packed again.
    cache = "cache_capacity = 0          # all shapes are kept and share their packed weights"
    groups = _GROUPS.format(budget=_LABELS, cache=cache, alone=_ALONE.format(cache=cache), pairs="")
    return f"""pipeline = "sentiment"
default_group = "auto"       # the server measures which is the fastest here
equal_axes = [["input_ids.1", "attention_mask.1"]]     # no engine is relied on to look

[dynamic_batching]
max_batch_size = 8
max_queue_delay_ms = 0
max_queue_size = 64
{groups}
{warmups}
[parameters]
labels = [{names}]
labels_zh = [{chinese}]
buckets = {buckets}
max_tokens = {buckets[-1]}
pad_id = {pad_id}
"""


def mnist_config() -> str:
    return """default_group = "auto"       # the server measures which is the fastest here

[dynamic_batching]
max_batch_size = 32
max_queue_delay_ms = 0
max_queue_size = 64

[[instance_group]]
name = "native"
backend = "paddle_inference"
count = 1
threads = 1
[instance_group.options]
onednn = false              # one small matrix product: nothing for oneDNN to fuse

[[warmup]]
shapes = { image = [1, 784] }
"""
