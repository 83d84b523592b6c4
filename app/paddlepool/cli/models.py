"""`paddlepool models`: list, verify, describe, seal and sync models; judge new versions."""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from paddlepool.cli import canary, shared
from paddlepool.contracts.errors import ConfigError, ManifestError, PaddlepoolError
from paddlepool.contracts.sentences import printable
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.backends.converted import converted_once
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.load_history import UNSEALED
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.comparison.result import align_columns
from paddlepool.evidence.quality.ports import ComposedQuality, Source, TaskQuality
from paddlepool.evidence.quality.report import CARD, Report, compare_card, read_card, write_card
from paddlepool.evidence.quality.run import measure_composed, measure_model, task_quality
from paddlepool.making.export.trial_rows import batching_warning
from paddlepool.models.repository.config import VersionPolicy, load_config
from paddlepool.models.repository.layout import ComposedFiles, ModelFiles, ModelRepository
from paddlepool.models.repository.manifest import Manifest, read_contents
from paddlepool.models.repository.selftest import shapes_of
from paddlepool.models.sources import sync
from paddlepool.observability.metrics import Metrics
from paddlepool.tasks.task import agreement_of, load_tasks, named_task

DATA = Path("../shared/data")
ANSWER_CHARACTERS = 2000
"""Maximum characters of a sample's answer that are printed."""
NO_CARD = "there is no such card"
SMOKE = (Path("training/emotion/smoke.jsonl"), Path("training/emotion/everyday.jsonl"))


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list", help="list every version, whether it is served, and its origin"
    )
    listing.set_defaults(act=_list)
    verify = actions.add_parser("verify", help="compare every file with its manifest")
    verify.set_defaults(act=_verify)
    verify.add_argument("names", nargs="*", metavar="MODEL", help="default: every model")
    verify.add_argument(
        "--run",
        dest="self_test",  # `run` is the command's own function
        action="store_true",
        help="also open the default group and each other group that always runs, and run the "
        "self-test",
    )
    _add_quality_options(verify)
    describe = actions.add_parser(
        "describe", help="show inputs, outputs, instance groups and origin of one model"
    )
    describe.set_defaults(act=_describe)
    shared.add_model_options(describe)
    seal = actions.add_parser(
        "seal", help="write the manifest of a Paddle or ONNX program that was exported elsewhere"
    )
    seal.set_defaults(act=_seal)
    seal.add_argument(
        "directory",
        type=Path,
        metavar="MODEL/VERSION",
        help="contains NAME.json or NAME.pdmodel, and NAME.pdiparams if it has parameters; "
        "or NAME.onnx",
    )
    seal.add_argument(
        "--input",
        dest="inputs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="real inputs: .npz files with an array for each input, one set in a file",
    )
    seal.add_argument(
        "--shape",
        dest="shapes",
        action="append",
        nargs="+",
        default=[],
        metavar="NAME=SIZE,…",
        help="a realistic shape of each input, such as x=1,3,480,640 or, for two inputs, x=4,8 y=4;"
        " may be repeated",
    )
    seal.add_argument("--source", default="", help="free text: source of the weights")
    seal.add_argument("--licence", default="", help="licence of the weights")
    syncing = actions.add_parser(
        "sync", help="copy models from s3://, gs://, hf:// or a directory, and verify them"
    )
    syncing.set_defaults(act=_sync)
    syncing.add_argument(
        "address", metavar="ADDRESS", help="contains MODEL/config.toml, MODEL/VERSION/…"
    )
    syncing.add_argument(
        "--end-with-input",
        action="store_true",
        help="exit at the end of standard input, for programs that start this one",
    )
    canary.configure(actions)
    for action in (listing, verify, syncing):
        shared.add_repository_option(action)


def _add_quality_options(parser: argparse.ArgumentParser) -> None:
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
    options.add_argument("--limit", type=int, metavar="N", help="use only the first N of each set")
    options.add_argument(
        "--group",
        metavar="GROUP",
        help="this instance group instead of the default one, and its loss compared with that",
    )
    options.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to this file"
    )
    options.add_argument(
        "--write-cards",
        action="store_true",
        help="write the figures into each MODEL_CARD.md instead of comparing them",
    )


def run(args: argparse.Namespace) -> int:
    return int(args.act(args))


def _list(args: argparse.Namespace) -> int:
    repository = shared.open_repository(args.repository)
    rows = [("MODEL", "VERSION", "SERVED", "SIZE", "NETWORK", "WEIGHTS", "PIPELINE")]
    for name in repository.names():
        unsealed, versions = repository.unsealed(name), repository.versions(name)
        served = 0
        for version in sorted((*versions, *unsealed), reverse=True):
            try:
                if version in unsealed:
                    raise ManifestError(f"unsealed: {UNSEALED}")
                manifest = read_contents(repository.root / name / str(version))
                config = repository.config(name)
                named_task(name, config.pipeline, config.parts)
            except PaddlepoolError as error:
                rows.append((name, str(version), "no", "-", "-", error.message, "-"))
                continue
            size = sum(entry.bytes for entry in manifest.files.values())
            network = "composed"
            if isinstance(manifest, Manifest):
                network = str((manifest.network or {}).get("name", "-"))
            origin = str(manifest.weights.get("origin", "-"))
            preview = " (preview)" if manifest.weights.get("preview") else ""
            # As a server does, skip unusable versions.
            policy = config.version_policy
            if repository.judged_with(name) is not None:
                policy = VersionPolicy(kind="canary")
            candidates, count = policy.choose(versions)
            serves = version in candidates and served < count
            served += serves
            figures = (_word(serves), _size(size), network, origin + preview)
            rows.append((name, str(version), *figures, config.pipeline or "-"))
    print(align_columns(rows))
    return 0


def _verify(args: argparse.Namespace) -> int:
    repository = shared.open_repository(args.repository)
    _check_quality_options(args)
    for name in args.names:
        shared.check_model(repository, name)
    rows = [("MODEL", "VERSION", "RESULT")]
    faults = 0
    for name in args.names or repository.names():
        versions = repository.versions(name)
        unsealed = repository.unsealed(name)
        rows += [(name, str(version), UNSEALED) for version in unsealed]
        if not versions and not unsealed:
            rows.append((name, "-", "no version with a manifest is published"))
        if not versions or unsealed:
            faults += 1
        for version in versions:
            try:
                result = _verified(repository, name, version, run=args.self_test)
            except PaddlepoolError as error:
                result = f"FAILED: {error.message}"
                faults += 1
            rows.append((name, str(version), result))
    print(align_columns(rows))
    if faults or not args.quality:
        return 1 if faults else 0
    return _verify_quality(repository, args)


def _verified(repository: ModelRepository, name: str, version: int, *, run: bool) -> str:
    """Verify a version and, if `run`, run its self-test; return the result as a phrase.

    The self-test of a composed model opens its parts and answers its sample request. Raises the
    errors of reading the version and of the test.
    """
    config = repository.config(name)
    named_task(name, config.pipeline, config.parts)
    if config.parts:
        from paddlepool.cli.composed import tested  # imports the server

        composed = repository.read_composed(name, version)
        return asyncio.run(tested(repository, composed)) if run else "ok"
    files = repository.read(name, version)
    files.selftest()
    program = files.directory / files.manifest.program
    warning = batching_warning(program, files.config.dynamic_batching.max_batch_size)
    return (asyncio.run(_self_test(files)) if run else "ok") + warning


async def _self_test(files: ModelFiles) -> str:
    context = EngineContext(
        open_predictor=ProcessBackend(), observer=Metrics(build={}), agreement_of=agreement_of
    )
    model = ServedModel(files, context=context)
    try:
        await model.start(default=True)
        groups = [group for group in model.groups() if group.started]
    finally:
        await model.close()
    return f"ok, self-test passed on {', '.join(group.name for group in groups)}"


def _describe(args: argparse.Namespace) -> int:
    repository = shared.open_repository(args.repository)
    shared.check_model(repository, args.model)
    if repository.config(args.model).parts:
        return _describe_composed(args)
    files = shared.read_model(args)
    versions = repository.versions(args.model)
    manifest, config = files.manifest, files.config
    batching = config.dynamic_batching
    facts = {
        **_origin(files, versions),
        "batching": f"up to {batching.max_batch_size or 'any number of'} rows, "
        f"waits {batching.max_queue_delay_ms:g} ms, "
        f"queue of {batching.max_queue_size} per instance",
    }
    print(align_columns([(f"{label}:", value) for label, value in facts.items()]))
    print()
    _print_tensors(manifest.inputs, files.outputs)
    groups = [("GROUP", "BACKEND", "COUNT", "THREADS", "START", "OPTIONS")]
    for group in config.instance_group:
        name = f"{group.name} (default)" if group.name == config.default_group else group.name
        counts = str(group.count), str(group.threads)
        groups.append((name, group.backend, *counts, group.start, _pairs(group.options) or "-"))
    print(f"\n{align_columns(groups)}")
    return 0


def _describe_composed(args: argparse.Namespace) -> int:
    repository = shared.open_repository(args.repository)
    versions = repository.versions(args.model)
    if not versions:
        raise ManifestError(f"{args.model}: no version with a manifest is published")
    files = repository.read_composed(args.model, args.version or versions[0])
    answer = (files.directory / files.manifest.answer).read_text("utf-8")
    facts = {
        **_origin(files, versions),
        **{name: str(value) for name, value in files.config.parameters.items()},
        "sample": files.manifest.sample,
        "answer": printable(" ".join(answer.split())[:ANSWER_CHARACTERS]),
    }
    print(align_columns([(f"{label}:", value) for label, value in facts.items()]))
    print(f"\n{align_columns([('PART', 'MODEL'), *files.config.parts.items()])}")
    return 0


def _origin(files: ModelFiles | ComposedFiles, versions: Sequence[int]) -> dict[str, str]:
    manifest = files.manifest
    return {
        "model": f"{files.name}, version {files.version} (of {', '.join(map(str, versions))})",
        "pipeline": files.config.pipeline or "none: raw tensors over /v2",
        "sha256": manifest.sha256(),
        "built with": _pairs(manifest.built_with),
        **{
            f"weights' {key}": _word(value)
            for key, value in sorted(manifest.weights.items())
            if value != ""
        },
    }


def _print_tensors(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    rows = [("TENSOR", "NAME", "DTYPE", "SHAPE")]
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            sizes = ("any" if size == -1 else str(size) for size in spec.shape)
            rows.append((kind, spec.name, spec.dtype, " × ".join(sizes) or "scalar"))
    print(align_columns(rows))


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {_word(value)}" for key, value in values.items())


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _seal(args: argparse.Namespace) -> int:
    from paddlepool.making.export.seal import seal  # imports onnx

    directory = args.directory.resolve()
    if load_config(directory.parent / "config.toml").parts:
        from paddlepool.cli.composed import seal_composed  # imports the server

        with shared.quiet_children():
            answer = seal_composed(directory, source=args.source, licence=args.licence)
        text = json.dumps(answer, ensure_ascii=False)
        print(f"answer of the sample request: {printable(text[:ANSWER_CHARACTERS])}")
        return 0
    with shared.quiet_children(), converted_once() as converted:
        sealed = seal(
            directory,
            open_predictor=ProcessBackend(converted=converted),
            agreement_of=agreement_of,
            real_inputs=args.inputs,
            shapes=args.shapes,
            source=args.source,
            licence=args.licence,
        )
    trial = sealed.trial
    _print_tensors(sealed.inputs, sealed.outputs)
    print()
    cases = trial.selftest.cases
    facts = [
        ("tried on", f"{shapes_of(cases[0].inputs)} ({trial.source})"),
        *(("", shapes_of(case.inputs)) for case in cases[1:]),
        *(("", note) for note in trial.notes),
        ("rows", sealed.rows),
        *((group.name, group.refusal or "right on every input") for group in sealed.groups),
        ("config.toml", "written" if sealed.config else "unchanged"),
    ]
    if sealed.unused:
        facts.append(("ignored", ", ".join(map(printable, sealed.unused))))
    unproven = [name for name, array in trial.selftest.outputs.items() if not array.size]
    if unproven:
        fact = f"checks only dtype and shape of {', '.join(unproven)}: empty for random input"
        facts.append(("self-test", fact))
    print(align_columns([(f"{label}:" if label else "", value) for label, value in facts]))
    return 0


def _sync(args: argparse.Namespace) -> int:
    """Copy models from a source; print the changes, and the versions that were refused.

    Returns 0 even if versions were refused. Exits with 143 after SIGTERM.
    """
    # SIGTERM raises an exception, so that partial copies are removed.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if args.end_with_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    changes = sync.sync(sync.Source(args.address), shared.repository_root(args.repository))
    for line in sync.lines_of(changes):
        print(line)
    return 0


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # Signal the main thread: only a signal interrupts some of its calls.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _check_quality_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that cannot be combined, and for a --limit below 1."""
    unused = [
        option
        for option in ("data", "smoke", "limit", "group", "json", "write_cards")
        if getattr(args, option) not in (None, False)
    ]
    if unused and not args.quality:
        raise ConfigError(f"--{unused[0].replace('_', '-')} belongs to --quality")
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit must be at least 1, received {args.limit}")
    if args.group is not None and args.write_cards:
        raise ConfigError("--write-cards is for the default group: leave --group out")
    if args.limit is not None and args.write_cards:
        raise ConfigError("--write-cards needs all the data: leave --limit out")


def _measure(files: ModelFiles, task: TaskQuality, args: argparse.Namespace) -> Report:
    _announce(files, files.config.default_group, files.group(args.group).name)
    return measure_model(
        files,
        task,
        group=args.group,
        agreement=agreement_of(files.info()),
        open_predictor=ProcessBackend(),
        limit=args.limit,
    )


def _measure_composed(
    repository: ModelRepository,
    files: ComposedFiles,
    task: ComposedQuality,
    args: argparse.Namespace,
) -> Report:
    from paddlepool.cli.composed import answers  # imports the server

    base = ",".join(
        f"{part}:{repository.config(name).default_group}"
        for part, name in files.config.parts.items()
    )
    _announce(files, base, args.group or base)
    return measure_composed(
        files,
        task,
        lambda group: asyncio.run(answers(repository, files, task.samples, group)),
        base=base,
        group=args.group,
        limit=args.limit,
    )


def _announce(files: ModelFiles | ComposedFiles, *groups: str) -> None:
    about = f"{files.name}@{files.version}: measuring {' and '.join(dict.fromkeys(groups))}"
    # Progress bars appear only on terminals; elsewhere, minutes of silence would suggest a hang
    print(f"\n{about}, which takes minutes", flush=True)


def _verify_quality(repository: ModelRepository, args: argparse.Namespace) -> int:
    """Measure and print the figures of each model; return 1 if a model card has different ones.

    Models without a measure of quality are left out. With --limit, --group or --write-cards, no
    model card is compared. Raises ConfigError if a named model has no measure, or data or a card to
    write cannot be read, and the errors of reading and running a model.
    """
    source = Source(
        data=args.data or DATA,
        smoke=tuple(args.smoke or (path for path in SMOKE if path.is_file())),
        limit=args.limit,
    )
    declared = {name: task.quality for name, task in load_tasks().items()}
    models = [shared.read_any_version(repository, n) for n in args.names or repository.names()]
    tasks = [
        (files, files.directory.parent / CARD, task_quality(files, source, declared))
        for files in models
    ]
    for files, card, task in tasks:
        if task is None and files.name in args.names:
            raise ConfigError(f"{files.name}: no quality measure is defined for it")
        if task is not None and args.write_cards:
            read_card(card)
    figures = {}
    differ = False
    for files, card, task in tasks:
        if task is None:
            print(f"\n{files.name}: no quality measure is defined for it")
            continue
        if isinstance(files, ComposedFiles):
            report = _measure_composed(repository, files, cast(ComposedQuality, task), args)
        else:
            report = _measure(files, cast(TaskQuality, task), args)
        figures[report.model] = report.as_json()
        print(f"\n{report.as_text()}", flush=True)
        if args.write_cards:
            write_card(card, report)
            print(f"\n{files.name}/{CARD}: figures written")
        elif args.limit is None and args.group is None:
            clause, wrong = compare_card(card, report) if card.exists() else (NO_CARD, False)
            print(f"\n{files.name}/{CARD}: {clause}")
            differ = differ or wrong
    if args.json is not None:
        shared.write_json(args.json, figures)
    return int(differ)
