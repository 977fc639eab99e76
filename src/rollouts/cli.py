"""The command line: read options, call one function, print, exit. Nobody imports this file.

Heavy modules are imported where they are used, so that `--help` costs no more than a bare typer app.
"""

import json
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rollouts import __version__
from rollouts.errors import ConfigError, ExitCode, RolloutsError
from rollouts.terminal import counted, printable, printable_json, printable_line, silence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollouts.batch import BatchOutcome
    from rollouts.console import RunConsole
    from rollouts.pruning import OldBatch
    from rollouts.resuming import ResumeOptions
    from rollouts.store import DataRoot

app = typer.Typer(
    name="rollouts",
    help="Run coding agents many times in sandboxes, keep their patches, and compare models honestly.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path, typer.Argument(help="A benchmark file, like configs/hello.toml.")]
Name = Annotated[str, typer.Argument(help="A benchmark's name.")]
Latest = Annotated[bool, typer.Option("--latest", help="The newest batch; the default.")]
Rollout = Annotated[str | None, typer.Option("--rollout", metavar="STAMP", help="A batch's stamp, or a day: YYYYMMDD.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BackendOption = Annotated[str | None, typer.Option("--backend", help="docker, modal or local; wins over the file.")]
Parallel = Annotated[int | None, typer.Option("--parallel", min=1, max=4096, help="Runs at once; wins over the file.")]
Only = Annotated[str | None, typer.Option("--only", metavar="GLOB", help="Only tasks or models whose name matches.")]
Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True, help="-v: progress lines; -vv: all output.")]
Score = Annotated[bool, typer.Option("--eval", help="Score each run as soon as it ends.")]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Also do again what the agent failed at, ran out of time or memory.")
]
Force = Annotated[bool, typer.Option("--force", help="Go on though the benchmark or a task changed since.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and create nothing.")]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="ROLLOUTS_DATA", help="Where everything is kept.")]
DATA = Path("data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rollouts {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Config,
    backend: BackendOption = None,
    parallel: Parallel = None,
    only: Only = None,
    score: Score = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="STAMP", help="Do what is missing of this batch instead.")
    ] = None,
    retry_failed: RetryFailed = False,
    force: Force = False,
    dry_run: DryRun = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """Run a benchmark: every task, model and rollout in a sandbox of its own."""
    root = _root(data_dir)
    if resume is not None:
        if backend or only:
            raise typer.BadParameter("--backend and --only belong to a new batch; a resumed one keeps its own")
        from rollouts.config import load_benchmark
        from rollouts.resuming import ResumeOptions

        options = ResumeOptions(parallel, retry_failed, force, config, score)
        _resume(root, load_benchmark(config).name, resume, options, dry_run, verbose, as_json)
    if retry_failed or force:
        raise typer.BadParameter("--retry-failed and --force go with --resume")
    from rollouts import planning

    plan = planning.plan_batch(config, backend=backend, parallel=parallel, only=only)
    if dry_run:
        _show_plan(dict(planning.dry_run(plan, root)), as_json)
        return
    from rollouts.batch import run_batch

    _attend(lambda console: run_batch(plan, root, console, score=score), verbose, as_json)


@app.command()
def resume(
    name: Name,
    latest: Latest = False,
    rollout: Rollout = None,
    parallel: Parallel = None,
    score: Score = False,
    retry_failed: RetryFailed = False,
    force: Force = False,
    dry_run: DryRun = False,
    verbose: Verbose = 0,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """Do what is missing of a batch that was stopped or killed, and touch nothing that is finished."""
    from rollouts.resuming import ResumeOptions

    _refuse_both(latest, rollout)
    options = ResumeOptions(parallel, retry_failed, force, None, score)
    _resume(_root(data_dir), name, rollout, options, dry_run, verbose, as_json)


def _resume(
    root: "DataRoot",
    name: str,
    rollout: str | None,
    options: "ResumeOptions",
    dry_run: bool,
    verbose: int,
    as_json: bool,
) -> NoReturn:
    from rollouts import planning
    from rollouts.batch import resume_batch
    from rollouts.resuming import plan_resume
    from rollouts.store import BatchState, find_batch

    place = find_batch(root, name, rollout)
    if dry_run:
        resumption = plan_resume(root, place, BatchState.load(place.folder), options)
        _show_plan({**planning.dry_run(resumption.plan, root), "kept": resumption.kept}, as_json)
        _exit(ExitCode.OK)
    _attend(lambda console: resume_batch(root, place, options, console), verbose, as_json)


def _attend(work: "Callable[[RunConsole], BatchOutcome]", verbose: int, as_json: bool) -> NoReturn:
    """Tell about a batch while it runs, and what came of it."""
    from rollouts.console import RunConsole

    console = RunConsole(verbose, sys.stderr if as_json else sys.stdout, sys.stderr)
    _log_to(console.warn)
    outcome = None
    try:
        outcome = work(console)
    finally:
        stopped = outcome is not None and outcome.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        console.close(outcome.results if outcome is not None else None, stopped=stopped)
    if as_json:
        _print_json(json.loads((outcome.folder / "manifest.json").read_text()))
    elif outcome.lines:
        from rollouts.tables import show_evaluation

        show_evaluation(outcome.lines)
    _exit(outcome.exit_code)


@app.command("eval")
def evaluate(
    name: Name,
    latest: Latest = False,
    rollout: Rollout = None,
    backend: BackendOption = None,
    parallel: Parallel = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="GLOB", help="Only runs whose task, model or id matches.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Score runs again that have a verdict.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings from this file, not from the batch's own copy.")
    ] = None,
    fail_under: Annotated[
        float | None, typer.Option("--fail-under", min=0, max=1, help="Exit 5 when the mean score is below this.")
    ] = None,
    verbose: Verbose = 0,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """Score every run of a batch in fresh sandboxes; runs that have a verdict are left alone."""
    from rollouts.console import EvalConsole
    from rollouts.eval_manifest import MANIFEST
    from rollouts.evaluation import EvalOptions, evaluate_batch
    from rollouts.store import find_batch
    from rollouts.tables import show_evaluation

    _refuse_both(latest, rollout)
    root = _root(data_dir)
    place = find_batch(root, name, rollout)
    console = EvalConsole(verbose, sys.stderr, sys.stderr)
    _log_to(console.warn)
    outcome = None
    try:
        outcome = evaluate_batch(root, place, EvalOptions(backend, parallel, only, force, config, fail_under), console)
    finally:
        console.close(outcome)
    if as_json:
        _print_json(json.loads((outcome.folder / MANIFEST).read_text()))
    else:
        show_evaluation(outcome.lines)
    _exit(outcome.exit_code)


@app.command()
def summarize(
    name: Name, latest: Latest = False, rollout: Rollout = None, as_json: Json = False, data_dir: DataDir = DATA
) -> None:
    """Show what came of a batch: status, verdicts, time and changes per task and model."""
    from dataclasses import asdict

    from rollouts.eval_manifest import load_verdicts
    from rollouts.store import BatchState, find_batch
    from rollouts.summary import summarize_results
    from rollouts.tables import show_summary

    _refuse_both(latest, rollout)
    _log_to(_warn)
    place = find_batch(_root(data_dir), name, rollout)
    state = BatchState.load(place.folder)
    rows = summarize_results(state.results.values(), load_verdicts(place.folder))
    manifest = state.manifest()
    if as_json:
        head = {key: value for key, value in manifest.items() if key != "results"}
        _print_json({**head, "rows": [asdict(row) for row in rows]})
    else:
        show_summary(manifest, rows)


@app.command("list")
def list_batches(
    name: Annotated[str | None, typer.Argument(help="Only this benchmark's batches.")] = None,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """List the batches that were run here."""
    from rollouts.store import describe_batches
    from rollouts.tables import show_batches

    _log_to(_warn)
    rows = describe_batches(_root(data_dir), name)
    if as_json:
        _print_json({"schema": 1, "batches": rows})
    else:
        show_batches(rows)


@app.command()
def validate(
    config: Annotated[Path, typer.Argument(help="A benchmark file, or a task folder.")],
    try_tasks: Annotated[
        bool, typer.Option("--run", help="Also try each task: untouched it must fail, its solution must pass.")
    ] = False,
    backend: BackendOption = None,
    parallel: Parallel = None,
    only: Only = None,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """Check a benchmark file and every task it names, or one task; with --run by trying them."""
    from rollouts.planning import missing_variables, plan_batch, plan_task

    if try_tasks:
        _try_tasks(config, backend, parallel, only, as_json, data_dir)
    if config.is_dir():
        task = plan_task(config)[1][0]
        _print_json({"schema": 1, "task": task.task_id}) if as_json else typer.echo(printable(f"{config}: fine"))
        return
    plan = plan_batch(config, backend=backend, parallel=parallel, only=only)
    tasks = sorted({spec.task.task_id for spec in plan.specs})
    warnings = missing_variables(plan)
    if as_json:
        _print_json({"schema": 1, "config": str(config), "tasks": tasks, "runs": len(plan.specs), "warnings": warnings})
        return
    for line in warnings:
        typer.echo(printable(f"warning: {line}"), err=True)
    typer.echo(printable(f"{config}: fine; tasks: {len(tasks)}, runs: {len(plan.specs)}"))


def _try_tasks(
    config: Path, backend: str | None, parallel: int | None, only: str | None, as_json: bool, data_dir: Path
) -> NoReturn:
    from dataclasses import asdict

    from rollouts.planning import plan_task, plan_tasks
    from rollouts.tables import show_check
    from rollouts.validation import check_tasks, exit_code_of

    _log_to(_warn)
    benchmark, tasks = plan_task(config) if config.is_dir() else plan_tasks(config, only)
    checks = check_tasks(
        tasks,
        benchmark,
        _root(data_dir),
        backend=backend,
        parallel=parallel,
        checked=(lambda check: None) if as_json else show_check,
        warn=_warn,
    )
    if as_json:
        _print_json({"schema": 1, "tasks": [{**asdict(check), "fine": check.is_fine} for check in checks]})
    _exit(exit_code_of(checks))


@app.command()
def doctor(as_json: Json = False, data_dir: DataDir = DATA) -> None:
    """Look this machine over: engine, sandboxes, git, disk, keys; say what to do about what is missing."""
    from dataclasses import asdict

    from rollouts.doctor import examine, exit_code_of
    from rollouts.tables import show_findings

    findings = examine(_root(data_dir))
    if as_json:
        _print_json({"schema": 1, "findings": [asdict(finding) for finding in findings]})
    else:
        show_findings(findings)
    _exit(exit_code_of(findings))


@app.command()
def clean(
    images: Annotated[bool, typer.Option("--images", help="Also remove images that can be built again.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--runs-older-than", metavar="AGE", help="Also delete batches older than this, like 30d or 12h."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete data without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: Json = False,
    data_dir: DataDir = DATA,
) -> None:
    """Remove what killed processes left behind; on request also images, and old batches with their runs."""
    from rollouts import cleaning, tables
    from rollouts.pruning import parse_age

    age_s = parse_age(older_than) if older_than is not None else None
    if age_s is not None and not yes and not dry_run and not (sys.stdin and sys.stdin.isatty()):
        raise ConfigError("--runs-older-than: this deletes data, and there is no terminal to ask on; give --yes")
    _log_to(_say)
    outcome = cleaning.clean(
        _root(data_dir),
        cleaning.CleanOptions(dry_run, images, age_s),
        agreed=lambda old: yes or _agreed(old),
        told=partial(tables.show_removed, dry_run=dry_run, silent=as_json),
        warn=_say,
    )
    for text in outcome.failed:
        _say(f"cannot be removed: {text}")
    if as_json:
        _print_json(outcome.to_json())
    else:
        tables.show_cleaned(outcome.removed, dry_run=dry_run)
    _exit(outcome.exit_code)


def _say(text: str) -> None:
    typer.echo(f"[rollouts] {printable_line(text)}", err=True)


def _agreed(old: "Sequence[OldBatch]") -> bool:
    from rollouts.tables import shown_size

    batches, runs = sum(len(each.folders) for each in old), sum(len(each.runs) for each in old)
    size = shown_size(sum(each.bytes for each in old))
    try:
        question = f"Delete {counted(batches, 'batch', 'batches')} with {counted(runs, 'run')}, {size}?"
        return typer.confirm(question, err=True)
    except typer.Abort:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None


def _root(data_dir: Path) -> "DataRoot":
    from rollouts.store import DataRoot

    return DataRoot(data_dir)


def _refuse_both(latest: bool, rollout: str | None) -> None:
    if latest and rollout:
        raise typer.BadParameter("give --latest or --rollout, not both")


def _show_plan(planned: dict[str, Any], as_json: bool) -> None:
    from rollouts.tables import show_plan

    _print_json(planned) if as_json else show_plan(planned)


def _print_json(value: Any) -> None:
    typer.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def _warn(text: str) -> None:
    typer.echo(f"[rollouts] warning: {printable_line(text)}", err=True)


class _Warnings(logging.Handler):
    """Passes warnings of the program to where people see them."""

    def __init__(self, show: Any) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


def _log_to(show: Any) -> None:
    logging.getLogger("rollouts").addHandler(_Warnings(show))


def _exit(code: ExitCode) -> NoReturn:
    raise typer.Exit(int(code))


def main() -> NoReturn:
    """The console script. The one place that catches `RolloutsError`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - open until the end
    code = _run_app()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)  # `| head` has seen enough
    except OSError as exc:
        failed = _say_stdout_failed(exc)
        code = code or failed
    sys.exit(code)


def _run_app() -> int:
    try:
        app()
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(ExitCode.OK)
    except RolloutsError as exc:
        print(printable(str(exc)), file=sys.stderr)
        return int(exc.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except OSError as exc:
        if type(exc) not in (OSError, BrokenPipeError) or exc.filename is not None:
            raise  # not from writing to stdout
        return int(ExitCode.OK) if isinstance(exc, BrokenPipeError) else _say_stdout_failed(exc)
    return int(ExitCode.OK)


def _say_stdout_failed(exc: OSError) -> int:
    silence(sys.stdout)
    print(f"stdout: {exc.strerror}", file=sys.stderr)
    return int(ExitCode.NONE_SUCCEEDED)


if __name__ == "__main__":
    main()
