"""A JVM that is gone: what its exit code says, and that a run does not try again without it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext

from icestream.config.model import PipelineConfig
from icestream.errors import GaveUp, SparkEnded
from icestream.run import failures, pipeline_run
from icestream.run.options import RunOptions
from icestream.run.restart_policy import RestartPolicy
from icestream.spark.ended import FLAG, exit_code, spark_ended
from icestream.spark.session import _settings


def config(**more):
    tables = [{"name": "a.b"}]
    return PipelineConfig.model_validate(
        {"name": "p", "source": {"type": "generator"}, "tables": tables, **more}
    )


@pytest.fixture
def ends(monkeypatch):
    """Put a process that does this in the place of the JVM."""
    started = []

    def put(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        started.append(process)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))

    yield put
    for process in started:
        process.communicate()


@pytest.mark.parametrize("code", [3, 52])
def test_out_of_memory_names_the_setting_and_its_value(code):
    told = spark_ended(config(), code)
    assert str(told).endswith("ended: out of memory, with `spark.driver.memory` at 1g")
    assert told.where.endswith("logs/jvm.log")
    told = spark_ended(config(spark={"spark.driver.memory": "700m"}), code)
    assert "at 700m" in str(told)
    assert told.exit_code == 75


def test_out_of_memory_says_of_which(tmp_path):
    (tmp_path / "logs").mkdir()
    said = "Terminating due to java.lang.OutOfMemoryError: "
    (tmp_path / "logs" / "jvm.log").write_text(f"{said}Metaspace\n{said}Java heap space\n")
    told = spark_ended(config(state_location=str(tmp_path)), 3)
    assert "out of memory (Java heap space), with" in str(told)


@pytest.mark.parametrize(
    "code, said, advised",
    [
        (-9, "ended: killed (SIGKILL)", "short of memory"),
        (137, "ended: killed (SIGKILL)", "short of memory"),
        (-6, "ended: it crashed (SIGABRT)", "hs_err_pid"),
        (143, "ended: stopped by SIGTERM", "restart is safe"),
        (50, "ended with exit code 50", "restart is safe"),
        (None, "ended", "restart is safe"),
    ],
)
def test_other_ends(code, said, advised):
    told = spark_ended(config(), code)
    assert str(told) == f"pipeline `p`: Spark's Java process {said}"
    assert advised in told.hint


def test_the_exit_code_is_waited_for_a_moment(ends):
    ends("import sys; sys.stdin.read(); sys.exit(52)")
    assert exit_code(0.1) is None
    SparkContext._gateway.proc.stdin.close()
    assert exit_code(60) == 52
    assert exit_code() == 52


@pytest.mark.parametrize("sign", [ConnectionRefusedError(111, "refused"), Py4JError("broken")])
def test_no_second_try_without_a_jvm(ends, tmp_path, sign):
    ends("import sys; sys.exit(3)")
    told = failures.unknown_failure(config(state_location=str(tmp_path)), sign)
    assert isinstance(told, SparkEnded)
    assert "out of memory" in str(told)
    assert RestartPolicy().next_delay(told, 0.0) is None


def test_with_a_jvm_a_failure_is_what_it_says(ends, tmp_path):
    ends("import sys; sys.stdin.read()")
    told = failures.unknown_failure(config(state_location=str(tmp_path)), ValueError("odd"))
    assert type(told) is GaveUp
    assert "ValueError: odd" in str(told)
    assert RestartPolicy().next_delay(told, 0.0) is not None


def test_a_start_that_the_jvm_does_not_survive(ends, tmp_path, monkeypatch):
    def dies(*_):
        raise Py4JError("An error occurred while calling o1.x")

    ends("import os; os.abort()")
    monkeypatch.setattr(pipeline_run, "build_pipeline", dies)
    with pytest.raises(SparkEnded, match="crashed"):
        pipeline_run.start_run(None, config(state_location=str(tmp_path)), None, RunOptions())


def test_the_driver_ends_when_out_of_memory_unless_told_otherwise(tmp_path):
    def flags(**settings):
        conf = _settings("p", tmp_path, tmp_path, settings, [], [])
        return conf["spark.driver.extraJavaOptions"].split()

    assert FLAG in flags()
    off = FLAG.replace("+", "-")
    mine = flags(**{"spark.driver.extraJavaOptions": off})
    assert mine.index(off) > mine.index(FLAG)  # the last one wins
