"""What keeps the house in order, besides `make lint`: names, and what the commands import."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "icestream"
TOP = 8  # files besides __init__: the loop, and the words that everything else is written in


def test_the_top_level_stays_small():
    names = {file.name for file in SOURCE.glob("*.py")} - {"__init__.py"}
    assert len(names) <= TOP, sorted(names)


def test_no_class_name_means_two_things():
    where = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name != "Java":  # py4j asks for it
                where[node.name].add(str(file.relative_to(SOURCE)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


COMMANDS = {
    "status": "icestream.observe.status",
    "verify": "icestream.cli.verify, icestream.verify.tables, icestream.verify.mirror, "
    "icestream.verify.source",
    "rewind": "icestream.cli.rewind, icestream.rewind.tables",
    "plan": "icestream.cli.plan, icestream.plan.pipeline_plan",
    "validate": "icestream.cli.starting, icestream.config.load",
    "tables": "icestream.cli.tables",
    "preview": "icestream.plan.preview",
    "doctor": "icestream.spark.doctor",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_only_looks_needs_no_spark(command):
    """Nothing of Spark is imported with its modules."""
    code = (
        f"import sys, {COMMANDS[command]}\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _imports(file):
    """What a file imports, in functions as well; not what is for type checkers alone."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("command", COMMANDS)
def test_not_even_late(command):
    """Nor by an import inside a function, on any way through our own modules."""
    modules = {
        ".".join(("icestream", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): file
        for file in SOURCE.rglob("*.py")
    }
    todo, seen, found = COMMANDS[command].split(", "), set(), []
    while todo:
        name = todo.pop()
        if name in seen or name not in modules:
            continue
        seen.add(name)
        for imported in _imports(modules[name]):
            if imported.split(".")[0] in ("pyspark", "py4j"):
                found.append((name, imported))
            todo.append(imported)
    assert found == []
