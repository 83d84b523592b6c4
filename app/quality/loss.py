"""What one instance group loses against another: figures beside figures, outputs beside outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.contracts.ports import Agreement
from app.contracts.tensors import Tensors, mean_difference
from app.quality.ports import Findings, Table, Value


def differences(before: Findings, after: Findings, *, base: str) -> list[Table]:
    """For each table of figures one of what was added to them; counts stay as they are."""
    known = {table.key: dict(table.rows) for table in before.tables}
    return [
        Table(
            key=f"{table.key}_difference",
            title=f"{table.title}: difference from {base}",
            columns=table.columns,
            rows=tuple(
                (name, tuple(map(_difference, values, known[table.key][name])))
                for name, values in table.rows
            ),
        )
        for table in after.tables
    ]


def compare_outputs(
    found: Sequence[Tensors],
    expected: Sequence[Tensors],
    *,
    agreement: Agreement | None,
    base: str,
) -> Table:
    """How far the outputs themselves are from those of the base, over all jobs."""
    pairs = list(zip(found, expected, strict=True))
    drifts = [mean_difference(ours, theirs) for ours, theirs in pairs]
    columns: tuple[str, ...] = ("runs", "mean difference", "worst mean")
    values: tuple[Value, ...] = (len(drifts), float(np.mean(drifts)), max(drifts))
    if agreement is not None:
        columns += ("agreement",)
        values += (float(np.mean([agreement(ours, theirs) for ours, theirs in pairs])),)
    return Table(
        key="outputs", title=f"Outputs against those of {base}", columns=columns,
        rows=(("all", values),),
    )  # fmt: skip


def _difference(after: Value, before: Value) -> Value:
    return after if isinstance(after, int) and after == before else after - before
