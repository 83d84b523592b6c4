"""`paddlepool models verify --quality`: measure the figures of the served models again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.evidence.quality.ports import TaskQuality
    from app.evidence.quality.report import Report
    from app.models.repository.layout import ModelFiles

DATA = Path("../shared/data")
SMOKE = (Path("training/emotion/smoke.jsonl"), Path("training/emotion/everyday.jsonl"))


def add_quality_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("quality")
    options.add_argument(
        "--quality",
        action="store_true",
        help="also measure the newest version of each model on data, and compare its model card",
    )
    options.add_argument("--data", type=Path, metavar="DIR", help=f"default: {DATA}")
    options.add_argument(
        "--smoke",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"everyday sentences with labels; default: {', '.join(map(str, SMOKE))}",
    )
    options.add_argument(
        "--limit", type=int, metavar="N", help="a quick look at the first N of each set"
    )
    options.add_argument(
        "--group",
        metavar="GROUP",
        help="this instance group instead of the default one, and what it loses against that",
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    options.add_argument(
        "--write-cards",
        action="store_true",
        help="write the figures into each MODEL_CARD.md instead of comparing them",
    )


def check_quality_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that cannot be combined, before anything runs."""
    from app.contracts.errors import ConfigError

    given = [
        option
        for option in ("data", "smoke", "limit", "group", "json", "write_cards")
        if getattr(args, option) not in (None, False)
    ]
    if given and not args.quality:
        raise ConfigError(f"--{given[0].replace('_', '-')} belongs to --quality")
    if args.limit is not None and args.limit < 1:
        raise ConfigError("--limit must be at least 1", received=args.limit)
    if args.group is not None and args.write_cards:
        raise ConfigError("--write-cards is for the default group: leave --group out")
    if args.limit is not None and args.write_cards:
        raise ConfigError("--write-cards needs all the data: leave --limit out")


def verify_quality(models: Sequence[ModelFiles], args: argparse.Namespace) -> int:
    """Print the figures; return 1 if a model card has different ones."""
    from app.contracts.errors import ConfigError
    from app.evidence.quality.ports import Source
    from app.evidence.quality.report import CARD, read_card, write_card
    from app.evidence.quality.run import task_quality
    from app.tasks.task import load_tasks

    source = Source(
        data=args.data or DATA,
        smoke=tuple(args.smoke or (path for path in SMOKE if path.is_file())),
        limit=args.limit,
    )
    known = load_tasks()
    declared = {name: task.quality for name, task in known.items()}
    tasks = [(files, task_quality(files, source, declared)) for files in models]
    for files, task in tasks:
        if task is None and files.name in args.names:
            raise ConfigError(f"{files.name}: nothing is defined to measure its quality by")
        if task is not None and args.write_cards:
            read_card(files.directory.parent / CARD)
    reports: list[Report] = []
    differ = 0
    for files, task in tasks:
        if task is None:
            print(f"\n{files.name}: nothing is defined to measure its quality by")
            continue
        report = _measured(files, task, args)
        reports.append(report)
        print(f"\n{report.as_text()}", flush=True)
        card = files.directory.parent / CARD
        if args.write_cards:
            write_card(card, report)
            print(f"\n{files.name}/{CARD}: figures written")
        elif args.limit is None and args.group is None:
            differ += _compare(card, report)
    if args.json is not None:
        values = {report.model: report.as_json() for report in reports}
        args.json.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return 1 if differ else 0


def _measured(files: ModelFiles, task: TaskQuality, args: argparse.Namespace) -> Report:
    from app.engine.backends.process import ProcessBackend
    from app.evidence.quality.run import measure_model
    from app.tasks.task import agreement_of, load_tasks

    groups = dict.fromkeys((files.config.default_group, files.group(args.group).name))
    # Progress bars appear only on terminals; elsewhere, minutes of silence would look like a hang.
    print(
        f"\n{files.name}@{files.version}: measuring {' and '.join(groups)}, which takes minutes",
        flush=True,
    )
    agreement = agreement_of(files.info(), tasks=load_tasks())
    return measure_model(
        files,
        task,
        group=args.group,
        agreement=agreement,
        open_predictor=ProcessBackend(),
        limit=args.limit,
    )


def _compare(card: Path, report: Report) -> int:
    from app.evidence.quality.report import compare_card

    label = f"{card.parent.name}/{card.name}"
    if not card.exists():
        print(f"\n{label}: there is no card")
        return 0
    found = compare_card(card, report)
    print(f"\n{label}: " + ("the figures are the same" if found is None else found.sentence))
    return 1 if found is not None and found.wrong else 0
