"""The runs that paths stand for."""

import json

import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.paths import run_folders
from scoremode.results.scores import Scores

PLACES = overlapping(600, CONTEXT, 64)
SCORES = made(**PLACES, full=False)
OWN = ("window", "position", "index", "target", "logprob", "top1", "top1_logprob")


@pytest.fixture
def folder(tmp_path):
    for name in ("b", "a", "deep/c", "too/deep/d"):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        write_run(tmp_path / "runs" / name, SCORES)
    return tmp_path / "runs"


def with_status(run, status):
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**record, "status": status}))


def test_a_folder_stands_for_its_runs_by_name_two_levels_deep(folder):
    assert run_folders([folder]) == [folder / "a", folder / "b", folder / "deep" / "c"]
    assert run_folders([folder / "too"]) == [folder / "too" / "deep" / "d"]


def test_a_run_is_taken_once_where_it_was_named_first(folder, tmp_path):
    a, b = folder / "a", folder / "b"
    assert run_folders([b, folder / "deep", folder]) == [b, folder / "deep" / "c", a]
    assert run_folders([folder, b]) == [a, folder / "deep" / "c", b]
    assert run_folders([folder, folder])[:2] == [a, b]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(a)
    assert run_folders([tmp_path / "other", folder])[0] == tmp_path / "other" / "link"
    assert len(run_folders([tmp_path / "other", folder])) == 3


def test_a_run_that_is_named_twice_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder / "a")
    for other in (folder / "a", folder / "b" / ".." / "a", tmp_path / "link"):
        with pytest.raises(UsageError, match="the same run twice: "):
            run_folders([folder / "a", other])


def test_what_is_not_done_is_left_out_with_a_note_and_taken_where_named(folder):
    with_status(folder / "b", "running")
    (folder / "deep" / "c" / "record.json").write_text("{")
    notes = []
    assert run_folders([folder], notes.append) == [folder / "a"]
    assert notes[0] == f"left out: {folder / 'b'}: is not done: its status is 'running'"
    assert len(notes) == 2 and notes[1].startswith(f"left out: {folder / 'deep' / 'c'}")
    assert run_folders([folder / "b", folder]) == [folder / "b", folder / "a"]
    assert run_folders([folder], unfinished=True) == [folder / "a", folder / "b"]


def test_references_are_left_out_where_runs_are_against_one(tmp_path):
    base = Scores.from_columns({k: v for k, v in SCORES.columns().items() if k in OWN})
    write_run(tmp_path / "base", base, changes={"kept": {}})
    assert run_folders([tmp_path]) == [tmp_path / "base"]
    write_run(tmp_path / "quant", made(**PLACES, noise=0.1))
    assert run_folders([tmp_path]) == [tmp_path / "quant"]
    assert run_folders([tmp_path, tmp_path / "base"]) == [tmp_path / "quant", tmp_path / "base"]


def test_a_path_without_a_run_is_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    only = folder / "too" / "deep"
    with_status(only / "d", "invalid")
    for path, words in {
        tmp_path / "empty": "is no run, and holds no finished one",
        tmp_path / "file": "is no folder",
        tmp_path / "loop": "is no folder",
        tmp_path / "nothing": "is not there",
        tmp_path / ("x" * 300): "is not there",
        only: f"holds no finished one: {only / 'd'}: is not done: its status is 'invalid'",
    }.items():
        with pytest.raises(RunFolderError) as refused:
            run_folders([folder / "a", path])
        assert words in str(refused.value) and str(refused.value).startswith(str(path))


def test_a_sweep_s_manifest_beside_its_runs_is_none_of_them(folder):
    (folder / "sweep.json").write_text("{}")
    assert run_folders(sorted(folder.iterdir())) == [folder / "a", folder / "b", folder / "deep" / "c",
                                                     folder / "too" / "deep" / "d"]  # fmt: skip
    with pytest.raises(RunFolderError, match="is no folder"):
        run_folders([folder / "sweep.json"])
