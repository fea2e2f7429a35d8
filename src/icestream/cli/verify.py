"""Output of `verify`: a line per table and check, the violations below."""

from icestream.cli import output
from icestream.verify.report import MOST, Finding, TableReport, VerifyResult


def show_verified(result: VerifyResult, as_json: bool) -> None:
    """Show the result for people, or all of it as JSON."""
    if as_json:
        output.result_json(result.facts())
        return
    output.table(
        ("table", "check", "", ""),
        [
            (table.table, check.name, check.status, check.detail)
            for table in result.tables
            for check in table.checks
        ],
    )
    for table in result.tables:
        for text in table.notes:
            output.result(f"note: {table.table}: {text}")
    for table in result.tables:
        _show_findings(table)
    verdict = "clean" if result.clean else "VIOLATED"
    output.result(
        f"{result.pipeline}: {verdict}; "
        f"{result.lost:,} lost, {result.duplicated:,} duplicated, {result.phantom:,} phantom"
    )


def _show_findings(table: TableReport) -> None:
    for check in table.checks:
        # Of each check only the first findings are kept; `check.findings` counts all of them.
        kept = [finding for finding in table.findings if finding.check == check.name]
        for finding in kept:
            output.result(_line(finding))
        if check.findings > len(kept):
            output.result(
                f"  … {check.name}: {check.findings} findings, the first {MOST} are shown"
            )


def _line(finding: Finding) -> str:
    location = finding.location()
    where = f" ({location})" if location else ""
    return (
        f"violation: {finding.table}: {finding.kind}{where}: "
        f"expected {finding.expected}; seen {finding.seen}"
    )
