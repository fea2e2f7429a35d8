"""The runner's own rules, without Spark: signals, stops, and files that contradict each other."""

import os
import signal
import threading

import pytest

from icestream.config.model import PipelineConfig
from icestream.errors import ConfigError, Fenced, GaveUp, SparkEnded, Unreachable
from icestream.events import EventBus
from icestream.run import pipeline_run
from icestream.run.options import RunOptions
from icestream.run.pipeline_run import PipelineRun, StopRequested, _wait_until_drained
from icestream.run.signals import stop_signals
from icestream.run.supervisor import _refuse_conflicts
from icestream.spark import ended


class Pipeline:
    scratch = None

    def __init__(self):
        self.batches = []

    def process(self, frame, batch_id):
        self.batches.append(batch_id)
        if batch_id == 9:
            raise ValueError("nine")


class Closing(Pipeline):
    def close(self):
        pass

    def commit_consumed(self):
        pass

    def shut_down(self):
        pass


def test_a_batch_after_the_stop_is_sent_away_untouched(tmp_path):
    run = PipelineRun(None, Pipeline(), None)
    run.process_batch(None, 1)
    run.stopping = True
    with pytest.raises(StopRequested):
        run.process_batch(None, 2)
    assert run.pipeline.batches == [1]
    assert run.batch_turned_away
    assert run.failure is None


def test_a_batch_that_is_sent_away_while_the_run_ends_is_no_failure():
    class Query:
        """Its batch comes up after the first look at what has ended it."""

        isActive = True  # noqa: N815

        def exception(self):
            with pytest.raises(StopRequested) as sent_away:
                run.process_batch(None, 2)
            return sent_away.value

        def stop(self):
            pass

    run = PipelineRun(None, Closing(), Closing(), stopping=True)
    run.query = Query()
    run.stop()
    assert run.failure is None
    assert run.pipeline.batches == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_stop_of_once_that_meets_a_batch_is_no_failure(ends):
    class Query:
        """Waiting for its end raises what ended it, as Spark's does and ours."""

        isActive = False  # noqa: N815

        def awaitTermination(self):  # noqa: N802
            run.process_batch(None, 2)

        processAllAvailable = awaitTermination  # noqa: N815

        def exception(self):
            return StopRequested()

        def stop(self):
            pass

    run = PipelineRun(None, Closing(), Closing(), stopping=True)
    run.query = Query()
    _wait_until_drained(run, ends)
    run.stop()
    assert run.failure is None
    assert not run.drained.is_set()
    assert run.pipeline.batches == []


def test_what_ends_a_stream_of_once_is_its_failure():
    class Query:
        def awaitTermination(self):  # noqa: N802
            raise ValueError("gone")

    run = PipelineRun(None, Closing(), Closing())
    run.query = Query()
    _wait_until_drained(run, ends_by_itself=True)
    assert str(run.failure) == "gone"


@pytest.mark.parametrize(
    "failure, diagnosis, told",
    [
        (ValueError("no such file"), None, SparkEnded),
        (Unreachable("the scratch is gone"), None, SparkEnded),
        (Unreachable("the scratch is gone"), Unreachable("a broker"), SparkEnded),
        (Unreachable("the scratch is gone"), Fenced("somebody else took over"), Fenced),
        (Fenced("somebody else took over"), None, Fenced),
    ],
)
def test_a_deleted_state_folder_does_not_hide_who_took_over(
    tmp_path, monkeypatch, failure, diagnosis, told
):
    class Deleted(Closing):
        def explain_failure(self):
            return diagnosis

    monkeypatch.setattr(ended, "scratch", tmp_path / "deleted")
    run = PipelineRun(config("p", state_location=str(tmp_path)), Deleted(), Closing())
    assert type(run.find_cause(failure)) is told


def test_a_failure_is_kept_whole(tmp_path):
    run = PipelineRun(None, Pipeline(), None)
    with pytest.raises(ValueError, match="nine"):
        run.process_batch(None, 9)
    assert isinstance(run.failure, ValueError)


def test_a_jvm_that_dies_while_a_failure_is_explained_is_the_explanation(tmp_path):
    class Source:
        def close(self):
            pass

    class Orphaned(Pipeline):
        def explain_failure(self):
            raise ConnectionRefusedError

        def shut_down(self):
            pass

    run = PipelineRun(config("p", state_location=str(tmp_path)), Orphaned(), Source())
    run.failure = ValueError("the first sign of it")
    run.stop()
    assert isinstance(run.failure, SparkEnded)
    assert run.failure.exit_code == 75


@pytest.mark.parametrize("reason", [Fenced("somebody else took over"), None])
def test_a_start_that_fails_says_why_if_it_can(tmp_path, monkeypatch, reason):
    class Overtaken(Pipeline):
        run_id = "r"

        def claim(self, accept_loss):
            raise FileNotFoundError("the scratch is gone")

        def explain_failure(self):
            return reason

        def shut_down(self):
            pass

    monkeypatch.setattr(pipeline_run, "build_pipeline", lambda *arguments: (Overtaken(), None))
    told, bus = [], EventBus()
    bus.join(told.append)
    with pytest.raises(Fenced if reason else FileNotFoundError):
        pipeline_run.start_run(
            None, config("p", state_location=str(tmp_path)), bus, RunOptions(once=True)
        )
    assert [event.kind for event in told] == ["run_failed"]


def test_a_failure_that_cannot_be_looked_into_is_told_as_it_is(tmp_path):
    class Source:
        def close(self):
            pass

    class Torn(Pipeline):
        def explain_failure(self):
            raise FileNotFoundError("metadata.json")

        def shut_down(self):
            pass

    run = PipelineRun(config("p", state_location=str(tmp_path)), Torn(), Source())
    run.failure = ValueError("nine")
    run.stop()
    assert type(run.failure) is GaveUp
    assert "nine" in str(run.failure)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_is_given_back_afterwards(kind):
    before = signal.getsignal(kind)
    with stop_signals() as (stop, listen):
        signal.signal(kind, signal.SIG_IGN)  # as Spark does with its own handler
        listen()
        os.kill(os.getpid(), kind)
        assert stop.wait(5)
    assert signal.getsignal(kind) is before
    assert threading.current_thread() is threading.main_thread()


def config(name, **more):
    return PipelineConfig.model_validate(
        {
            "name": name,
            "source": {"type": "generator"},
            "tables": [{"name": "a.b"}],
            **more,
        }
    )


@pytest.mark.parametrize(
    "second, said",
    [
        (config("one"), "same pipeline `name`"),
        (config("two", catalog={"type": "local", "warehouse": "/other"}), "different catalogs"),
        (config("two", spark={"spark.master": "local[1]"}), "`spark.master` differently"),
    ],
)
def test_files_that_contradict_each_other(second, said):
    first = config("one", spark={"spark.master": "local[2]"})
    with pytest.raises(ConfigError, match=said):
        _refuse_conflicts([first, second])
    _refuse_conflicts([first, config("two")])
