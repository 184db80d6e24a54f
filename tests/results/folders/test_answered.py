"""The files of a run of requests: sums of the Scores, and nothing that was changed is believed."""

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from support.task_runs import QUESTIONS, measured_requests, rounded

from scoremode.errors import RunFolderError
from scoremode.results.folders.finished import open_run
from scoremode.results.folders.store import read_scores
from scoremode.results.folders.tables import (
    ANSWERS,
    REQUESTS,
    answers_of,
    check_answered,
    read_table,
    write_table,
)
from scoremode.results.record.definition import read_document
from scoremode.results.record.text import AnswersFile


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory):
    place = tmp_path_factory.mktemp("tasks")
    model = rounded(demo / "model", place / "model")
    return measured_requests(model, place / "runs", demo / "model")


def test_a_log_likelihood_is_the_sum_over_its_windows(run):
    scores, found = (
        read_scores(run.folder),
        read_table(run.folder / REQUESTS, run.record.requests),
    )
    assert len(found["logprob"]) == run.record.document["requests"]["rows"] == 6 * QUESTIONS + 2
    assert max(map(len, found["windows"])) > 1
    for windows, logprob, greedy, base in zip(
        found["windows"], found["logprob"], found["is_greedy"], found["base_logprob"], strict=True
    ):
        here = np.isin(scores.window, windows)
        assert logprob == pytest.approx(scores.logprob[here].sum(), abs=1e-9)
        assert base == pytest.approx(scores.against.base_logprob[here].sum(), abs=1e-9)
        assert greedy == bool((scores.top1[here] == scores.target[here]).all())


def test_a_window_may_be_of_several_requests_and_a_request_of_none(run):
    scores = read_scores(run.folder)
    window, begin = np.array([0, 1, 0, -1]), np.array([0, 2, 3, 4])
    sums = [scores.logprob[scores.window == w].sum() for w in (0, 1)]
    found = answers_of(scores, window, begin)
    np.testing.assert_allclose(found.logprob, [sums[0] + sums[1], sums[0], 0], atol=1e-9)
    assert found.is_greedy[2]


def test_a_finished_run_opens(run):
    assert open_run(run.folder).record.document["tasks"]["tasks"].keys() == {
        "ends",
        "more",
        "pages",
    }


@pytest.mark.parametrize("name", [REQUESTS, ANSWERS])
def test_a_file_that_was_changed_is_not_believed(name, run):
    path = run.folder / name
    before = path.read_bytes()
    try:
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(RunFolderError, match=f"{name}: is damaged or another's"):
            open_run(run.folder)
        path.unlink()
        with pytest.raises(RunFolderError, match=f"{name}: not readable: No such file"):
            open_run(run.folder)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("column", ["logprob", "is_greedy", "base_logprob", "windows"])
def test_an_answer_that_the_scores_dont_give_is_not_believed(column, run, tmp_path):
    """Even where the record has the changed file's own hash."""
    found = read_table(run.folder / REQUESTS, run.record.requests)
    last = found[column][-1]
    changed = {"is_greedy": lambda: not last, "windows": lambda: last[:-1]}
    found[column][-1] = changed.get(column, lambda: last + 1)()
    made = write_table(tmp_path / REQUESTS, pa.table(found))

    def record(file):
        document = {k: v for k, v in run.record.document.items() if k not in ("tasks", "pages")}
        return read_document(document | {"requests": document["requests"] | file})

    with pytest.raises(RunFolderError, match=r"request 61 has .*the scores give"):
        check_answered(tmp_path, record(made), read_scores(run.folder))
    found[column] = found[column][:1] + ["what"] * (len(found[column]) - 1)
    made = write_table(
        tmp_path / REQUESTS, pa.table({**found, column: list(map(str, found[column]))})
    )
    with pytest.raises(RunFolderError, match=REQUESTS):
        check_answered(tmp_path, record(made), read_scores(run.folder))


def test_a_table_of_other_rows_than_the_record_has_is_refused(tmp_path):
    made = write_table(tmp_path / "t.parquet", pa.table({"a": [1, 2]}))
    file = AnswersFile(**made)
    assert read_table(tmp_path / "t.parquet", file) == {"a": [1, 2]}
    with pytest.raises(RunFolderError, match="has 2 rows, and the record 3"):
        read_table(tmp_path / "t.parquet", replace(file, rows=3))
