"""docs/comparison.md: measured tables as a page, without dates or machines' names, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from claim_tables import ClaimTable

from app.comparison.plot import DEFAULT, annotate, open_figure, save_figure
from app.comparison.result import Comparison
from app.comparison.table import columns, comparison_rows, markdown, reasons, seconds

WEIGHTS_DIGITS = 8
PUBLISHED = "#c0c4cc"

INTRODUCTION = """\
# Predictor configurations compared

`{command}` measured and wrote this page; `make comparison` does it again. Read ratios: seconds
belong to the machine, which was

> {machine}

Every instance group runs in a process of its own and is interleaved with the others, on the same
inputs, after its golden self-test and a warm run. Times are what a request pays for its predictor:
the way to the process and back is in them (about half a millisecond), queue, picture and tokenizer
are not.
"""

CLAIMS = """\
## The published tables, measured again

The tables that this project started from compare one network in several ways to run it. Ratios are
to the dynamic graph; *ahead* says whether ours is larger than the published one. Rows without a
published figure show what else there is: the dynamic graph with our allocator, bfloat16 where the
processor has it, and the whole machine busy, where the dynamic graph gets every core as threads and
Paddlepool gives every core a predictor. A published ratio counts as exceeded when one of its rows
is ahead: for BERT's static graph that is the row with length buckets, as the server runs it.
Padded, both sides do the same arithmetic on padding.

BERT has bert-base's shape (12 layers of 768, vocabulary of 21,128) and random weights: latency does
not depend on them. Texts have {lengths} tokens, in turn: equal shares of 40,374 posts. The original
padded every text to one maximum; here that is {padded}. Length buckets are what Paddlepool serves
with.
"""

READING = """\
## How to read the tables

- **Threads.** {budgets}
- **effective**: whether the group differs from its base group, in outputs bit by bit or in time
  by more than the interleaved runs explain (99 % bootstrap interval of the median ratio, 5 % at
  least). `NO` means that a configuration changes nothing; `unproven` that the runs were too few
  or too noisy to tell.
  Paddle's own switches cannot be asked: `enable_openvino_engine()`, and `enable_mkldnn_int8()` on
  a float program, report success and change nothing.
- **drift** is the largest absolute difference of any output from the default group's.
- **busy** rows keep every core at work: as many predictors as cores allow, one client each.
- **memory** is the resident size of one predictor process.
- **weights** in a heading are the first digits of the sha256 of the version's params file, as its
  `manifest.json` has it: the drift and the agreement belong to these weights.

## What the groups are

| group | what runs |
| --- | --- |
| `dygraph` | the network's Python code, operator by operator, as it was trained and debugged |
| `jit` | `paddle.jit.load` of the static program |
| `native` | Paddle Inference with `disable_mkldnn()`: oneDNN is on unless told otherwise |
| `onednn`, `onednn_t2` | Paddle Inference with oneDNN, one thread and two |
| `onednn_bf16` | the same in bfloat16, refused on a processor without AVX512_BF16 or AMX |
| `mixed` | as `onednn`; a text alone runs on Paddle's own kernels |
| `onnxruntime`, `openvino` | the same program through ONNX (extra `onnx`), tested against Paddle |
| `onnxruntime_int8`, `openvino_int8`, `openvino_int8_t2` | the program `int8`, derived from it |
| `gpu`, `gpu_fp16` | Paddle Inference on CUDA, refused where Paddle was built without |

Predictors of static Paddle programs (`jit` and Paddle Inference) run with Paddlepool's allocator
settings; the dynamic graph and the other frameworks run in a plain process, as their users have it
([decision 6](decisions/0006-the-allocator-belongs-to-the-served-programs.md)).
"""


def page(
    *,
    command: str,
    machine: str,
    tables: Sequence[tuple[ClaimTable, str]],
    comparisons: Sequence[tuple[Comparison, str]],
    lengths: str,
    padded: int,
) -> str:
    """The whole page; each table comes with the path of its plot, seen from the page."""
    parts = [
        INTRODUCTION.format(command=command, machine=machine),
        CLAIMS.format(lengths=lengths, padded=padded),
    ]
    for table, plot in tables:
        parts += [f"### {table.title}\n", markdown(claim_rows(table)) + "\n"]
        parts += [f"Seconds are {table.unit}; {table.requests:,} requests a row.\n"]
        parts += [f"{name}: refused: {reason}\n" for name, reason in table.refused.items()]
        parts += [f"![{table.title}: published and measured speed-ups]({plot})\n"]
    budgets = comparisons[0][0].budgets() if comparisons else ""
    parts.append(READING.format(budgets=budgets))
    for found, plot in comparisons:
        weights = found.weights_sha256[:WEIGHTS_DIGITS]
        parts += [f"## {found.model}, version {found.version}, weights {weights}\n"]
        parts += [f"{found.groups[0].requests} requests a group.\n"]
        parts += [markdown(comparison_rows(found)) + "\n"]
        parts += ["\n".join(f"- {line}" for line in reasons(found)) + "\n"]
        parts += [f"![{found.model}: times and rates of its instance groups]({plot})\n"]
    return "\n".join(parts)


def claim_rows(table: ClaimTable) -> list[list[str]]:
    head = ["", "threads", "published", "published ratio", "here", "ratio here", "ahead"]
    rows = [
        [
            row.label,
            row.threads,
            "-" if row.published_seconds is None else seconds(row.published_seconds),
            "-" if row.published_ratio is None else f"{row.published_ratio:.2f}",
            seconds(row.seconds),
            f"{row.ratio:.2f}",
            "-" if row.published_ratio in (None, 1.0) else "yes" if row.ahead else "no",
        ]
        for row in table.rows
    ]
    return [head, *rows]


def claim_text(table: ClaimTable) -> str:
    """The same for a terminal."""
    head = f"{table.title}: {table.unit}"
    refused = [f"{name}: refused: {reason}" for name, reason in table.refused.items()]
    return "\n".join([head, columns(claim_rows(table)), *refused])


def plot_claims(tables: Sequence[ClaimTable], file: Path) -> None:
    """Published speed-ups over the dynamic graph beside ours, as bars."""
    figure, axes = open_figure(len(tables), width=9.6 * len(tables), height=4.6)
    for axis, table in zip(axes, tables, strict=True):
        names = [row.label for row in table.rows]
        published = [row.published_ratio or 0.0 for row in table.rows]
        ours = [row.ratio for row in table.rows]
        places = list(range(len(names)))
        axis.barh([p + 0.2 for p in places], published, 0.38, color=PUBLISHED, label="published")
        axis.barh([p - 0.2 for p in places], ours, 0.38, color=DEFAULT, label="measured here")
        for place, row in zip(places, table.rows, strict=True):
            if row.published_ratio is not None:
                annotate(axis, row.published_ratio, place + 0.2, f"{row.published_ratio:.1f}×")
            annotate(axis, row.ratio, place - 0.2, f"{row.ratio:.1f}×")
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.15 * max(*published, *ours))
        axis.set_xlabel("times faster than the dynamic graph")
        axis.set_title(table.title, fontsize=10)
        axis.legend(fontsize=8, loc="upper right")
    save_figure(figure, file)
