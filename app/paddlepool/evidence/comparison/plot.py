"""Plots comparisons as PNG or SVG, by the file's suffix; needs the extra `compare`."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.result import Comparison, seconds

SUFFIXES = (".png", ".svg")
DEFAULT, OTHER, INEFFECTIVE = "#1f6feb", "#8aa4c8", "#d9a441"


def check_plot(file: Path) -> None:
    """Raise ConfigError if the suffix is not one of SUFFIXES or matplotlib is not installed."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"--plot writes {' and '.join(SUFFIXES)} files")
    _matplotlib()


def plot_comparison(comparison: Comparison, file: Path) -> None:
    """Plot each group's time of a single request and, if measured, its rate with all cores busy.

    Raises ConfigError if matplotlib is not installed, and OSError if `file` cannot be written.
    """
    times = [group.p50_seconds for group in comparison.groups]
    tails = [max(0.0, group.p95_seconds - group.p50_seconds) for group in comparison.groups]
    labels = [seconds(group.p50_seconds) for group in comparison.groups]
    alone = "one request alone: median, whisker to p95"
    panels = [(alone, "seconds", times, tails, labels)]
    rates = [group.concurrent_per_second or 0.0 for group in comparison.groups]
    if any(rates):
        labels = [
            f"{rate:.2f}/s  ({group.instances} × {group.threads}t)" if rate else "not measured"
            for rate, group in zip(rates, comparison.groups, strict=True)
        ]
        busy = f"all {comparison.cores:g} cores busy: requests per second"
        panels.append((busy, "requests per second", rates, [], labels))
    names = [f"{group.group} ({group.threads}t)" for group in comparison.groups]
    colours = [
        DEFAULT
        if group.group == comparison.default_group
        else INEFFECTIVE
        if group.effective is False
        else OTHER
        for group in comparison.groups
    ]
    figure, axes = open_figure(
        len(panels), width=5.6 * len(panels) + 1.0, height=1.6 + 0.42 * len(names)
    )
    for axis, (title, unit, values, whiskers, texts) in zip(axes, panels, strict=True):
        bars = {"xerr": [[0.0] * len(names), whiskers], "capsize": 3} if whiskers else {}
        axis.barh(names, values, color=colours, **bars)
        ends = [sum(parts) for parts in zip_longest(values, whiskers, fillvalue=0.0)]
        axis.invert_yaxis()
        axis.set_xlim(0, 1.45 * max(ends))
        for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
            annotate(axis, end, place, text)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(unit)
        axis.tick_params(labelleft=axis is axes[0])
    figure.suptitle(f"{comparison.model}@{comparison.version}: instance groups", fontsize=12)
    legend = "blue: the default group; amber: changes nothing; 1t: one thread"
    figure.text(0.01, 0.01, f"{comparison.machine}. {legend}", fontsize=7, color="#555555")
    save_figure(figure, file)


def open_figure(panels: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    figure = _matplotlib().Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def annotate(axis: Any, end: float, place: float, label: str) -> None:
    axis.annotate(label, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8)


def save_figure(figure: Any, file: Path) -> None:
    import matplotlib

    # Text stays text, element ids are fixed and there is no date: equal plots give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paddlepool"}):
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, metadata=metadata)


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ConfigError("plots need the package matplotlib (extra compare)") from error
    return matplotlib.figure
