"""Commands of `gradleak`. Exit codes: 0 finished, 1 --fail-on occurred, 2 bad plan or input, 3 an item failed, 70 our fault."""

from __future__ import annotations

import json
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.gate import FailOnOption, Gate, JUnitOption, SarifOption
from gradleak.cli.init import init
from gradleak.cli.outputs import SUFFIXES, Format, check_folder, format_of, place_for, write_report
from gradleak.cli.preview import preview
from gradleak.cli.progress import shown, train_with_progress
from gradleak.results import GradleakError, InputError, Record, Status
from gradleak.results.files import write_file
from gradleak.results.versions import version_of

if TYPE_CHECKING:
    from gradleak.auditing import Executor

app = typer.Typer(
    name="gradleak",
    help="Tells you what a shared gradient gives away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gradleak {version_of('gradleak')}")
        raise typer.Exit


app.command()(init)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tells you what a shared gradient gives away."""


class ExitCode:
    """Exit code that the shell sees."""

    FINISHED = 0
    VERDICT_OCCURRED = 1
    ITEM_FAILED = 3


class Place(StrEnum):
    """Executors by name."""

    LOKY = "loky"
    DASK = "dask"
    RAY = "ray"


class UpdateKind(StrEnum):
    """Kinds of updates, here again so that help needs no torch."""

    GRADIENT = "gradient"
    DELTA = "delta"
    WEIGHTS = "weights"


DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="Device that the tasks compute on: cuda, cuda:1, mps or cpu; with an accelerator one job is the default. A run "
        "on another kind of device is not continued."
    ),
]


@app.command()
def audit(
    plan: Annotated[Path, typer.Argument(help="Plan file (TOML); see examples/digits.toml.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted run there is continued.")],
    jobs: Annotated[
        int | None, typer.Option(help="Worker processes, one thread each; default: number of cores.")
    ] = None,
    fail_on: FailOnOption = None,
    junit: JUnitOption = None,
    sarif: SarifOption = None,
    update: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of an update that was really sent (safetensors, npz, or a torch file of plain tensors), by name or as "
            "a list in the order of parameters() or state_dict(). May be repeated: one for each batch, or several of one."
        ),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="The scenario that the updates come from, where the plan has several.")
    ] = None,
    kind: Annotated[
        UpdateKind | None,
        typer.Option(
            help="Kind of the updates, where their files do not say; a delta is initial minus final, weights are whole "
            "parameters after training."
        ),
    ] = None,
    sign: Annotated[
        int, typer.Option(help="-1 for updates that are the difference final minus initial parameters.")
    ] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the verdict.")] = False,
    shard: Annotated[
        str | None,
        typer.Option(help="Do one share of the tasks, such as 3/16; `gradleak merge` draws the verdicts from all."),
    ] = None,
    executor: Annotated[
        Place, typer.Option(help="Where tasks run: processes of this machine, a Dask or a Ray cluster.")
    ] = Place.LOKY,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Address of a running cluster, or the file of a Dask scheduler; default: one of this machine."
        ),
    ] = None,
    device: DeviceOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for the tasks, such as 10m: cheap and telling ones first; what is left out, and why, stands in the "
            "record, and the same command with more time goes on."
        ),
    ] = None,
) -> None:
    """Carry out a plan and write record.jsonl, report.html, report.md and report.json into OUT.

    With --update it is about updates that were really sent; whether they fit the plan is said first.
    """
    # The folder of the command comes first, so that a plan can name the user's own modules.
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing import Budget, Shard, device_of, load_plan, load_updates, run_plan, with_updates
    from gradleak.auditing.device import jobs_on

    where = None if device is None else device_of(device)

    share = None if shard is None else Shard.parse(shard)
    time = None if budget is None else Budget(budget, shared=False)
    if share is not None and (fail_on or junit or sarif):
        raise InputError(
            "--fail-on, --junit, --sarif: expected no shard beside them, since `gradleak merge` gives the verdicts; write "
            "them there"
        )
    loaded = load_plan(plan)
    if update:
        sent = load_updates(update, kind=None if kind is None else kind.value, sign=sign)
        loaded = with_updates(loaded, sent, scenario=scenario)
    elif scenario is not None or kind is not None or sign != 1:
        raise InputError(
            "--scenario, --kind, --sign: expected with --update FILE, got none; they say what its updates are"
        )
    gate = Gate(plan=plan, fail_on=fail_on or (), junit=junit, sarif=sarif)
    gate.prepare(loaded)
    check_folder(out)
    place = _executor(executor, cluster, jobs_on(where, jobs))
    lines, expected = ((), {}) if quiet else preview(loaded, where, budget=None if time is None else time.seconds)
    for line in lines:
        typer.echo(line, err=True)
    with shown(quiet, expected, workers=place.width) as advance:
        record = run_plan(loaded, out, executor=place, progress=advance, budget=time, shard=share, device=where)
    if not quiet:
        _say_left_out(record)
    if share is None:
        _end(record, out, gate=gate, quiet=quiet)
        return
    typer.echo(f"shard {share}: done in {out}; when all are: gradleak merge {plan} SHARD... --out RUN")
    _fail_for_items(record)


@app.command()
def merge(
    plan: Annotated[Path, typer.Argument(help="Plan file (TOML) that the shards were made of.")],
    shards: Annotated[list[Path], typer.Argument(help="Folders of all shards, in any order.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    fail_on: FailOnOption = None,
    junit: JUnitOption = None,
    sarif: SarifOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the verdict.")] = False,
) -> None:
    """Make one record of the shards of a plan (`gradleak audit --shard`), with verdicts and reports, in OUT."""
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing import load_plan, merge_shards

    loaded = load_plan(plan)
    gate = Gate(plan=plan, fail_on=fail_on or (), junit=junit, sarif=sarif)
    gate.prepare(loaded)
    check_folder(out)
    with shown(quiet) as advance:
        record = merge_shards(loaded, shards, out, progress=advance)
    _end(record, out, gate=gate, quiet=quiet)


@app.command()
def check(
    plans: Annotated[list[Path], typer.Argument(help="Plan files (TOML).")],
) -> None:
    """Check plans before anything is attacked: what is refused, and what they cost. Ends with 2 where one is no plan."""
    # The folder of the command comes first, so that a plan can name the user's own modules.
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing import load_plan
    from gradleak.auditing.run import preflight

    wrong = []
    for plan in plans:
        try:
            loaded = load_plan(plan)
            preflight(loaded)
        except GradleakError as error:
            # What is said of the file itself begins with its name.
            wrong.append(f"{plan}: {str(error).removeprefix(f'{plan}: ')}")
            continue
        for line in preview(loaded)[0]:
            typer.echo(f"{plan}: {line}")
    if wrong:
        raise InputError(" | ".join(wrong))


@app.command("advise")
def advise_setting(
    plan: Annotated[Path, typer.Argument(help="Plan file (TOML) with [utility] and one list of numbers in a defense.")],
    utility: Annotated[float, typer.Option(help="The least utility on test rows, such as an accuracy of 0.8.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs; an interrupted search there is continued.")],
    jobs: Annotated[int | None, typer.Option(help="Worker processes; default: number of cores.")] = None,
    device: DeviceOption = None,
) -> None:
    """Search the weakest setting of a defense that is bounded at a utility, between the ends of the list in a plan."""
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing import device_of
    from gradleak.auditing.advise import advise
    from gradleak.auditing.plan_file import read_toml

    where = None if device is None else device_of(device)
    content = read_toml(plan, "a plan file")
    found = advise(content, folder=plan.parent, utility=utility, out=out, jobs=jobs, device=where)
    for one in found.tried:
        if not one.unproven:
            typer.echo(f"{found.key} = {one}")
    for one in found.tried:
        if one.unproven:
            typer.echo(f"unproven, a closed form alone lets it pass: {found.key} = {one}")
    chosen = (
        f"the weakest bounded setting: {found.key} = {found.chosen}"
        if found.chosen
        else "none: no such setting was found"
    )
    typer.echo(chosen)
    for sentence in found.open:
        typer.echo(f"not resolved: {sentence}")


def _executor(place: Place, cluster: str | None, jobs: int | None) -> Executor:
    """The executor that the flags of a run name."""
    if place is Place.LOKY:
        from gradleak.auditing import Loky

        if cluster is not None:
            raise InputError(f"--cluster: expected --executor dask or ray beside it, got {place.value}")
        return Loky(jobs=jobs)
    if place is Place.RAY:
        from gradleak.auditing.executor_ray import Ray

        return Ray(address=cluster, jobs=jobs)
    from gradleak.auditing.executor_dask import Dask

    if cluster is not None and Path(cluster).is_file():
        return Dask(scheduler_file=cluster, jobs=jobs)
    return Dask(address=cluster, jobs=jobs)


def _end(record: Record, out: Path, *, gate: Gate, quiet: bool) -> None:
    """Write and print what came out, and end with the exit code that it means."""
    # There may be no room for a page, or nobody who reads on.
    try:
        _print_verdicts(record, quiet=quiet)
    finally:
        for format_ in Format:
            write_report(record, out / f"report{SUFFIXES[format_]}", format_)
        gate.write(record)
    typer.echo(f"report: {out / 'report.html'}")
    _fail_for_items(record)
    if said := gate.breached(record):
        typer.echo(said, err=True)
        raise typer.Exit(ExitCode.VERDICT_OCCURRED)


def _say_left_out(record: Record) -> None:
    """Say what a budget left out, and how to have it."""
    from gradleak.auditing.plan import counted

    left = [finding for finding in record.findings if finding.status is Status.LEFT_OUT]
    if left:
        reasons = Counter(finding.note for finding in left)
        for note, count in reasons.most_common(5):
            typer.echo(f"{counted(count, 'task')} {note}", err=True)
        more = f" ({len(reasons) - 5} more reasons are in the record)" if len(reasons) > 5 else ""
        typer.echo(f"the same command with a larger --budget, or none, goes on from here{more}", err=True)


def _fail_for_items(record: Record) -> None:
    from gradleak.reporting.context import Context

    context = Context(record=record)
    failed = [finding for finding in record.findings if finding.status is Status.FAILED]
    for finding in failed:
        typer.echo(f"failed: {context.title(finding)}: {finding.note}", err=True)
    if failed:
        raise typer.Exit(ExitCode.ITEM_FAILED)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its record.jsonl.")],
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format", help="What to write; default: all formats beside the record, by the name for a file of --out."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.* beside the record.")] = None,
    per_record: Annotated[
        bool,
        typer.Option("--per-record", help="Put every row into the JSON document; it tells which examples are exposed."),
    ] = False,
) -> None:
    """Write the report of a run again, from its record alone; the verdicts stay those of the run."""
    record = Record.load(run)
    assert record.path is not None
    if record.damaged:
        typer.echo(f"left out of {record.path}, since it is damaged: {'; '.join(record.damage)}", err=True)
    if out is not None:
        place_for(out, "--out", record.path)
        format_ = format_ or format_of(out)
    # No page is left as an older version wrote it.
    formats = list(Format) if format_ is None else [format_]
    for chosen in formats:
        target = out or record.path.with_name(f"report{SUFFIXES[chosen]}")
        write_report(record, target, chosen, per_record=per_record)
        typer.echo(str(target))


class Worse(StrEnum):
    """Difference that ends a comparison with 1."""

    WORSE = "worse"


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="Folder of a run, or its record.jsonl, to compare with.")],
    after: Annotated[Path, typer.Argument(help="Folder of the run that is judged, or its record.jsonl.")],
    out: Annotated[Path | None, typer.Option(help="Page to write: a name that ends in .html or .md.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, such as for a comment in CI.")] = False,
    fail_on: Annotated[
        Worse | None,
        typer.Option(
            help="Exit with code 1 if a verdict is worse, is missing, or a score leaks more beyond both intervals."
        ),
    ] = None,
) -> None:
    """Compare two runs: verdicts that changed, scores beyond their intervals, and the plans key by key."""
    from gradleak.reporting.diff import Difference, difference
    from gradleak.reporting.html import render_html
    from gradleak.reporting.markdown import render_markdown
    from gradleak.reporting.terminal import render_text

    found = Difference(before=Record.load(before), after=Record.load(after))
    page = difference(found.before, found.after)
    if out is None:
        typer.echo(render_markdown(page) if markdown else render_text(page))
    elif out.suffix in (".html", ".md"):
        place_for(out, "--out", *(one.path for one in (found.before, found.after) if one.path is not None))
        typer.echo(str(write_file(out, render_html(page) if out.suffix == ".html" else render_markdown(page))))
    else:
        raise InputError(f"--out: expected a file name that ends in .html or .md, got {out}")
    if fail_on is not None and found.worse:
        typer.echo(f"--fail-on worse: {'; '.join(found.worse)}", err=True)
        raise typer.Exit(ExitCode.VERDICT_OCCURRED)


# Arguments and options are the runner's.
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def study(context: typer.Context) -> None:
    """Compute a paper's table or figure again, with the paper's value beside ours; in a checkout alone."""
    from gradleak.cli.studies import runner

    found = runner()
    if found is None:
        raise InputError(
            "study: expected the root of a checkout of gradleak, whose folder `studies` no installed package carries, got "
            f"{Path.cwd()}; run it there, as `gradleak study NAME` or `python -m studies NAME`"
        )
    found.app(context.args, prog_name="gradleak study")


@app.command(name="train-generator")
def train_generator_(
    plan: Annotated[Path, typer.Argument(help="Training file (TOML); see examples/digits_generator.toml.")],
    out: Annotated[Path, typer.Option(help="File for the weights (.safetensors); the facts go beside it (.json).")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the files.")] = False,
) -> None:
    """Train a small generator of images on public data, for attacks that search one."""
    # The folder of the command comes first, so that a plan can name the user's own modules.
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing import train_generator

    if out.suffix != ".safetensors":
        raise InputError(f"--out: expected a file name that ends in .safetensors, got {out}")
    made = train_generator(plan) if quiet else train_with_progress(plan)
    facts = made.save(out)
    if not quiet:
        typer.echo(made.source)
    typer.echo(f"{out}\n{facts}")


@app.command(name="list")
def list_() -> None:
    """List all that a plan or Python can name, a checkout's studies, and which attack runs on which defense, or why not."""
    from gradleak.auditing.catalog import catalog, from_python
    from gradleak.auditing.compatibility import as_text, pairs
    from gradleak.cli.explain import POLICY
    from gradleak.cli.studies import factories, studies

    for room, entries in (catalog() | from_python()).items():
        typer.echo(f"{room}:")
        for entry in entries.values():
            typer.echo(f"  {entry.name:<32} {entry.summary}")
    typer.echo("policy of a scenario:")
    for key, meaning in POLICY.items():
        typer.echo(f"  {key:<32} {meaning}")
    for room, named in {"studies": studies(), "data sets and networks of the studies": factories()}.items():
        if named:
            typer.echo(f"{room}:")
        for name, item in named.items():
            typer.echo(f"  {name:<32} {(item.__doc__ or '').splitlines()[0]}")
    typer.echo(as_text(pairs()))


@app.command()
def schema(
    generator: Annotated[
        bool, typer.Option("--generator", help="Of files for train-generator, in place of plan files.")
    ] = False,
) -> None:
    """Print the JSON Schema of plan files, by which editors complete and check them."""
    from gradleak.auditing.plan_schema import generator_schema, plan_schema

    typer.echo(json.dumps(generator_schema() if generator else plan_schema(), indent=2))


@app.command()
def explain(
    name: Annotated[
        str, typer.Argument(help="A name from `gradleak list`, a score, an outcome, an evidence kind or a verdict.")
    ],
) -> None:
    """Explain an attack, measure, defense, study, score, outcome, evidence kind or verdict."""
    from gradleak.cli.explain import explanation

    typer.echo(explanation(name))


def _print_verdicts(record: Record, *, quiet: bool) -> None:
    from gradleak.reporting.page import assemble
    from gradleak.reporting.terminal import render_terminal, verdict_lines

    typer.echo("\n".join(verdict_lines(record)) if quiet else render_terminal(assemble(record)))
