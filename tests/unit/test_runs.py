"""Scratch of runs: the fenced lose theirs, and nobody else."""

from icestream.run import scratch


def test_a_run_removes_what_it_has_fenced(tmp_path):
    scratch.make_scratch(tmp_path, 3, "c")
    (scratch.make_scratch(tmp_path, 9, "a") / "checkpoint").mkdir()
    newest = scratch.make_scratch(tmp_path, 10, "b")
    assert [each.name for each in tmp_path.iterdir()] == [newest.name]


def test_a_run_that_comes_late_to_it_takes_nothing_from_its_successor(tmp_path):
    later = scratch.make_scratch(tmp_path, 2, "a")
    own = scratch.make_scratch(tmp_path, 1, "b")
    assert later.is_dir()
    assert own.is_dir()


def test_what_has_no_generation_is_older_than_all(tmp_path):
    (tmp_path / "0123456789abcdef" / "checkpoint").mkdir(parents=True)
    (tmp_path / "a-b").mkdir()
    own = scratch.make_scratch(tmp_path, 1, "b")
    assert list(tmp_path.iterdir()) == [own]
