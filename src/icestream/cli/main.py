"""The verbs of `icestream`, one short function each; the work is done elsewhere."""

import sys
from pathlib import Path
from typing import Any

import click

from icestream import __version__
from icestream.errors import IcestreamError, InternalError

_FILE = click.argument("file", type=click.Path(path_type=Path), default="icestream.yml")
_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path))
_SETS = click.argument("sets", nargs=-1, metavar="[SETS]...")
_KINDS = (
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "rewrite_manifests",
    "expire_snapshots",
    "remove_orphan_files",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="icestream")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Log lines on stderr."
)
@click.pass_context
def cli(context: click.Context, log_format: str) -> None:
    """Streaming ingestion into Apache Iceberg: each record exactly once.

    One YAML file per pipeline; FILE is icestream.yml unless given.
    """
    context.obj = log_format


@cli.command()
@click.option(
    "--seconds", type=click.IntRange(5, 3600), default=40, help="How long, from the first commit."
)
@click.option(
    "--folder", type=click.Path(path_type=Path), default="icestream-demo", help="Where to put it."
)
@click.option("--kafka", is_flag=True, help="Through a real Kafka broker, started for the demo.")
@click.pass_obj
def demo(log_format: str, seconds: int, folder: Path, kafka: bool) -> None:
    """Run a small shop into a local lake, then show what was ingested."""
    from icestream.cli.demo.expected_orders import prove_generated
    from icestream.cli.demo.generated import prepare, suggest, summary
    from icestream.cli.watch import run_watched

    if kafka:
        from icestream.cli.demo.kafka import run_demo

        run_demo(folder, seconds, log_format)
        return
    loaded = prepare(folder)
    run_watched([loaded], log_format, seconds=seconds)
    summary(loaded)
    prove_generated(loaded)
    suggest(loaded.path)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path), default="icestream.yml")
@click.option("--append", "kind", flag_value="append", default=True, help="Files into one table.")
@click.option("--cdc", "kind", flag_value="cdc", help="A database's changes as upserts.")
@click.option("--multi", "kind", flag_value="multi", help="Many topics into many tables.")
def init(file: Path, kind: str) -> None:
    """Write a commented pipeline file to start from."""
    from icestream.cli import output
    from icestream.cli.starting import write_starter

    write_starter(file, kind)
    output.note(f"wrote {file}; next: `icestream validate {file}`")


@cli.command()
@_FILE
@click.option("--offline", is_flag=True, help="Do not look at catalog and source.")
@_JSON
def validate(file: Path, offline: bool, as_json: bool) -> None:
    """Check the file; then, unless --offline, that catalog and source can be used."""
    from icestream.cli import output
    from icestream.cli.starting import check_environment
    from icestream.config.load import load

    loaded = load(file)
    for text in loaded.warnings:
        output.warning(text)
    if not offline:
        check_environment(loaded)
    checked = ["config", "references"] + ([] if offline else ["environment"])
    if as_json:
        output.result_json({"file": str(file), "ok": True, "checked": checked})
    else:
        output.result(f"{file}: ok ({', '.join(checked)})")


@cli.command()
@_FILE
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records a second.")
@click.option("--record-bytes", type=click.FloatRange(0, min_open=True), help="Each, as stored.")
@_JSON
def plan(file: Path, rate: float | None, record_bytes: float | None, as_json: bool) -> None:
    """Say what a run would do: tables, DDL, changes, files a day, memory; writes nothing.

    Rates are those of the last day's commits, unless --rate says another.
    """
    from icestream.cli.plan import make_plan, show_plan
    from icestream.config.load import load

    show_plan(make_plan(load(file).pipeline, rate, record_bytes), as_json)


@cli.command()
@_FILE
@click.option("-n", "--rows", type=click.IntRange(1, 10_000), default=10, help="Records to read.")
@_JSON
def preview(file: Path, rows: int, as_json: bool) -> None:
    """Read a few records, decode them, and show the rows; writes nothing."""
    from icestream.cli.show import show_preview
    from icestream.config.load import load
    from icestream.plan.preview import preview as make_preview

    show_preview(make_preview(load(file), rows), as_json)


@cli.command()
@_FILES
@click.option("--once", is_flag=True, help="Take what is there, commit, stop.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Give up records that the source has lost by now: record the ranges, go on behind them.",
)
@click.pass_obj
def run(log_format: str, files: tuple[Path, ...], once: bool, accept_loss: bool) -> None:
    """Run one or several pipelines until stopped; Ctrl-C and SIGTERM stop at a commit."""
    from icestream.cli.watch import run_watched
    from icestream.config.load import load

    loaded = [load(file) for file in files or (Path("icestream.yml"),)]
    run_watched(loaded, log_format, once=once, accept_loss=accept_loss)


@cli.command()
@_FILE
@click.option("--watch", is_flag=True, help="Keep the picture up to date.")
@click.option("--partitions", is_flag=True, help="Show each partition of the source, too.")
@_JSON
def status(file: Path, watch: bool, partitions: bool, as_json: bool) -> None:
    """Say how each table stands; exit 1 when one is unhealthy."""
    from icestream.cli.show import show_status, watch_status
    from icestream.config.load import load
    from icestream.observe.status import pipeline_status

    loaded = load(file)
    if watch:
        watch_status(lambda: pipeline_status(loaded), partitions)
        return
    result = pipeline_status(loaded)
    show_status(result, as_json, partitions)
    if not result.healthy:
        sys.exit(1)


@cli.command()
@_FILE
@_JSON
def tables(file: Path, as_json: bool) -> None:
    """Say how healthy each table is, and what maintenance would do now."""
    from icestream.cli.tables import look, show_tables
    from icestream.config.load import load

    result = look(load(file).pipeline)
    show_tables(result, as_json)
    if result.broken:
        sys.exit(1)


@cli.command()
@_FILE
@click.option("--plan", "only_plan", is_flag=True, help="Only say what would run, and why.")
@click.option("--table", metavar="NAME", help="Only this table.")
@click.option("--action", "kind", type=click.Choice(_KINDS), help="Only this action.")
@click.option("--history", is_flag=True, help="Say what ran in the last 30 days.")
@_JSON
@click.pass_obj
def maintain(
    log_format: str,
    file: Path,
    only_plan: bool,
    table: str | None,
    kind: str | None,
    history: bool,
    as_json: bool,
) -> None:
    """Run maintenance now, also beside a running stream; Ctrl-C calls it off."""
    from icestream.cli.maintain import due, run_maintenance, show_history, show_orphans, show_plan
    from icestream.config.load import load
    from icestream.maintain.action import ActionKind

    loaded, chosen = load(file), ActionKind(kind) if kind else None
    if history:
        show_history(loaded.pipeline, as_json, table, chosen)
        return
    actions = due(loaded.pipeline, table, chosen)
    if only_plan and actions and chosen is ActionKind.REMOVE_ORPHAN_FILES:
        show_orphans(loaded, actions, as_json)
    elif only_plan or not actions:
        show_plan(actions, loaded.pipeline.maintenance is False, as_json)
    elif not run_maintenance(loaded, actions, log_format, as_json):
        sys.exit(1)


@cli.command()
@_FILE
@click.option("--source", is_flag=True, help="Compare with the records that the broker still has.")
@click.option("--all-snapshots", is_flag=True, help="Check each retained snapshot, not only one.")
@click.option("--deep", is_flag=True, help="Read every value of every file.")
@_JSON
def verify(file: Path, source: bool, all_snapshots: bool, deep: bool, as_json: bool) -> None:
    """Prove that each record is in its table once; exit 1 on any violation."""
    from icestream.cli.verify import show_verified
    from icestream.config.load import load
    from icestream.verify import verify as prove

    result = prove(load(file).pipeline, source, all_snapshots, deep)
    show_verified(result, as_json)
    if not result.clean:
        sys.exit(1)


@cli.command()
@_FILE
@click.option("--to-time", metavar="TIME", help="Such as 2026-01-31T12:00:00Z; no zone means UTC.")
@click.option("--to-snapshot", type=int, metavar="ID", help="Of one table; the others stay.")
@click.option("--table", metavar="NAME", help="Only this table, and its quarantine with it.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only the plan is shown.")
@click.option("--accept-loss", is_flag=True, help="Also if the source cannot give all of it again.")
@_JSON
def rewind(
    file: Path,
    to_time: str | None,
    to_snapshot: int | None,
    table: str | None,
    yes: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Move tables and source position back together; the next run replays from there."""
    from icestream.cli.rewind import say_again, show_rewind, target_of
    from icestream.config.load import load
    from icestream.rewind import plan_rewind
    from icestream.rewind import rewind as go_back

    target = target_of(to_time, to_snapshot)
    config = load(file).pipeline
    if yes:
        plan = go_back(config, target, table, accept_loss)
    else:
        plan = plan_rewind(config, target, table)
    show_rewind(plan, as_json, say_again(file, to_time, to_snapshot, table))


@cli.command()
@_JSON
def doctor(as_json: bool) -> None:
    """Check this machine: Java, Spark, jars, memory, disk, clock."""
    from icestream.cli.show import show_checks
    from icestream.spark.doctor import run_checks

    checks = run_checks()
    show_checks(checks, as_json)
    if any(check.status == "fail" for check in checks):
        sys.exit(1)


@cli.group()
def jars() -> None:
    """List, download or verify the Java libraries that Spark needs."""


@jars.command("list")
@_JSON
def jars_list(as_json: bool) -> None:
    """Say which jars there are and whether they are in the cache."""
    from icestream.cli.show import show_jars
    from icestream.spark import jars as library

    show_jars(library.status(library.known_sets()), as_json)


@jars.command("download")
@_SETS
def jars_download(sets: tuple[str, ...]) -> None:
    """Fetch the jars that the cache lacks; SETS is core unless given."""
    from icestream.cli import output
    from icestream.spark import jars as library

    with output.jar_progress() as progress:
        paths = library.ensure(sets or library.CORE, progress=progress)
    output.note(f"{len(paths)} jars are in the cache")


@jars.command("verify")
@_SETS
@_JSON
def jars_verify(sets: tuple[str, ...], as_json: bool) -> None:
    """Compare jars with their checksums; exit 1 when one is missing or broken."""
    from icestream.cli.show import show_jars
    from icestream.spark import jars as library

    statuses = library.verify(sets or library.CORE)
    show_jars(statuses, as_json)
    if any(jar.state != "ok" for jar in statuses):
        sys.exit(1)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the pipeline file, for editors."""
    from icestream.cli import output
    from icestream.config.json_schema import json_schema

    output.result_json(json_schema())


def main(arguments: list[str] | None = None) -> Any:
    """The console script: run a verb, print errors with their hints, set the exit code."""
    from icestream.cli import output

    try:
        cli.main(args=arguments, prog_name="icestream", standalone_mode=True)
    except IcestreamError as failure:
        output.error(failure)
        sys.exit(failure.exit_code)
    except Exception as failure:
        output.unexpected(failure)
        sys.exit(InternalError.exit_code)


if __name__ == "__main__":
    main()
