"""Records changed behind our back: whatever is changed, the number is right or there is none."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.record_fields import changed, mutations, paths
from support.run_folders import with_record

from scoremode.errors import RunFolderError, ScoremodeError
from scoremode.reference.stored import StoredReference
from scoremode.report.compare import compare_document
from scoremode.report.run import kld_document, reference_document, run_document
from scoremode.report.terminal import document_text
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders import finished
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import read_record, seal_of
from scoremode.results.record.checks import check_record, checked_record
from scoremode.results.record.definition import Done

MADE = {"metrics", "intervals", "distribution", "breakdown", "thresholds", "llama_cpp",
        "llama_cpp_note"}  # fmt: skip
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), min_size=1, max_size=2),
)


MUTATIONS = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MUTATIONS
@given(st.data(), st.sampled_from(["drop", "nudge", "junk"]), JUNK)
def test_any_change_is_refused_in_a_line(whole, spoiled, data, how, junk):
    record = read_record(whole)
    path = data.draw(st.sampled_from(paths(record)))
    other = changed(record, path, how, junk)
    try:
        found = load_run(with_record(spoiled, other))[0].document
    except ScoremodeError as error:
        line = str(error)
        assert str(spoiled) in line and "\n" not in line
    else:
        # Nothing was changed, then: 1 for true, or 2.0 for 2, are the same to Python and not to JSON.
        assert json.dumps(other, sort_keys=True) == json.dumps(record, sort_keys=True)
        assert found == load_run(whole)[0].document


@MUTATIONS
@given(st.data(), st.sampled_from(["drop", "nudge", "junk"]), JUNK)
def test_a_change_that_was_sealed_moves_no_number(whole, spoiled, data, how, junk):
    """By somebody who knew how: it is refused, or all tables can be made, and what they show is what
    the scores give."""
    true = load_run(whole)[0].document
    record = read_record(whole)
    path = data.draw(st.sampled_from(paths(record)))
    # Blocks of a bootstrap, and so the intervals' widths, are as long as the record says.
    other = changed(record, path, how, junk)
    if "sha256" in other and path != ("sha256",):
        other["sha256"] = seal_of(other)
    with_record(spoiled, other)
    try:
        record = load_run(spoiled)[0]
        found = record.document
        value = ranking([spoiled])
        tables = [document_text(kld_document(record, spoiled))]
        tables += [make(value) for make in (compare_document, compare_document, compare_document)]
    except ScoremodeError as error:
        assert str(spoiled) in str(error) and "\n" not in str(error)
        return
    assert all(tables)
    for name, metric in true["metrics"].items():
        assert math.isclose(found["metrics"][name]["value"], metric["value"], rel_tol=1e-12), name
    assert value["runs"][0]["ppl"]["value"] == true["metrics"]["ppl"]["value"]


def shown(folder: Path, record: Done) -> None:
    """All that is made of a finished run by commands that read one."""
    assert document_text(run_document(record, folder, verbose=True))
    if "kld" in record.metrics:
        assert document_text(kld_document(record, folder, verbose=True))
    if record.kept:
        assert document_text(reference_document(record, folder, verbose=True))
        stored = StoredReference(folder)
        assert stored.plan() and stored.dtype and stored.scores
    value = ranking([folder])
    assert all(make(value) for make in (compare_document, compare_document, compare_document))


@pytest.mark.parametrize("kind", ["ppl", "kld", "kept"])
def test_no_field_of_a_real_record_ends_in_a_traceback(kind, real_runs, tmp_path, monkeypatch):
    """Each removed, of another type, or one too many, and sealed anew by somebody who knew how."""
    folder = Path(shutil.copytree(real_runs[kind], tmp_path / "run"))
    record = read_record(folder)
    shown(folder, load_run(folder)[0])
    true = load_run(folder)
    made = true[0].document
    # They are the same for the same scores, and take longer than all else.
    monkeypatch.setattr(
        finished, "check_numbers", lambda *_: {k: made[k] for k in MADE & made.keys()}
    )
    monkeypatch.setattr(finished, "read_verified", lambda *_: (true[1], {}))
    passed = 0
    # The others have most of a comparison's fields: every fourth of its changes tells.
    step = 4 if kind == "kld" else 1
    for words, other in itertools.islice(mutations(record, *(record.keys() - MADE)), 0, None, step):
        other = other | {"sha256": seal_of(other)}
        try:
            check_record(other, folder / "record.json")
            with_record(folder, other)
            shown(folder, load_run(folder)[0])
        except ScoremodeError as error:
            assert "\n" not in str(error), words
        except Exception as error:
            raise AssertionError(f"{words}: {error!r}") from error
        else:
            passed += 1
    assert passed > 100


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "not a record"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": NaN}', "NaN is no finite number"),
        (b'{"a": 1e999}', "1e999 is no finite number"),
        (b"[" * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b"{}", "its record is None version None"),
    ],
)
def test_what_is_no_record(content, said, spoiled):
    (spoiled / "record.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=said) as refused:
        checked_record(spoiled)
    assert str(spoiled) in str(refused.value) and "\n" not in str(refused.value)
