"""Records whose protocol, plan or identity was edited, and sealed again: refused by their Scores."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import UNSET
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, scores_of, write_run

from scoremode.errors import ProtocolError, RunFolderError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import read_record
from scoremode.results.record.checks import (
    check_identity,
    check_stopped,
    stopping,
    swapped,
    unlike_dtypes,
)

PLACES = overlapping(3_000, CONTEXT, 48)
EDITS = {
    "protocol.stride": 47,
    "protocol.context_length": 128,
    "protocol.scored": "second-half",
    "protocol.vocabulary": "head",
    "plan.windows": 61,
    "plan.unique": 2_999,
    "plan.window_bos": 1,
    "plan.tokens_sha256": "a1" * 32,
    "plan.sha256": "b1" * 32,
}


@pytest.fixture(scope="module")
def true(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "true", made(**PLACES))


@pytest.mark.parametrize("field", EDITS)
def test_a_sealed_record_of_another_plan_is_refused(field, true, tmp_path):
    record = load_run(true)[0].document
    section, _, key = field.partition(".")
    assert record[section][key] != EDITS[field]
    # What was written of the protocol and the plan otherwise.
    said = {f"{name}.sha256": record[name]["sha256"] for name in ("protocol", "plan")}
    forged = write_run(tmp_path / "forged", made(**PLACES), changes=said | {field: EDITS[field]})
    with pytest.raises(RunFolderError, match=r"record.json: its (plan|protocol)\.\w+ is .* gives"):
        load_run(forged)


def test_so_is_one_with_the_protocol_s_own_sha256_made_anew(true, tmp_path):
    said = {"plan.sha256": read_record(true)["plan"]["sha256"], "protocol.stride": 47}
    forged = write_run(tmp_path / "forged", made(**PLACES), changes=said)
    with pytest.raises(RunFolderError, match=r"its plan\.sha256 is"):
        load_run(forged)


@pytest.mark.parametrize("key", ["plan", "checkpoint", "versions"])
def test_a_record_with_another_run_s_identity_is_refused(key, true, tmp_path):
    changes = {f"identity.{key}": {"torch": "0"} if key == "versions" else "f9" * 32}
    forged = write_run(tmp_path / "forged", made(**PLACES), changes=changes)
    with pytest.raises(RunFolderError, match=rf"its identity\.{key} is .*, and its {key}"):
        load_run(forged)


def test_a_reference_s_place_in_the_identity_is_compared_too():
    record = {"identity": {"reference": {"sha256": "a"}}, "reference": {"states_sha256": "b"}}
    with pytest.raises(RunFolderError, match=r"its identity\.reference\.sha256 is a, and its ref"):
        check_identity(Path("record.json"), record)


def test_the_shards_that_a_run_was_merged_of_share_out_its_windows(true, tmp_path):
    scores = made(**PLACES)
    windows = read_record(true)["plan"]["windows"]
    cut = int(np.searchsorted(scores.window, 20))
    shards = [
        {"number": 1, "run": "a", "windows": [0, 20], "targets": cut},
        {"number": 2, "run": "b", "windows": [20, windows], "targets": len(scores) - cut},
    ]
    same = {"record_sha256": "0" * 64, "scores_sha256": "0" * 64, "passes": [0, 1], "of_passes": 2,
            "device": {"type": "cpu", "name": "x", "threads": 1}, "processes": 1, "command": ["x"],
            "seconds": {"total": 1.0}}  # fmt: skip
    shards = [same | shard for shard in shards]
    folder = write_run(tmp_path / "merged", scores, changes={"merged": {"shards": shards}})
    assert load_run(folder)[0].document["merged"]["shards"] == shards
    for number, (name, value) in enumerate(
        [("windows", [0, 21]), ("windows", [1, 20]), ("targets", cut + 1), ("windows", [0, 19])]
    ):
        other = [shards[0] | {name: value}, shards[1]]
        bad = write_run(tmp_path / f"{number}", scores, changes={"merged": {"shards": other}})
        with pytest.raises(RunFolderError, match=r"its merged\.(windows|targets) is"):
            load_run(bad)
    for other in (shards[:1], shards[1:], []):
        bad = write_run(tmp_path / f"n{len(other)}{other[:1] == shards[1:]}", scores,
                        changes={"merged": {"shards": other}})  # fmt: skip
        with pytest.raises(RunFolderError, match=r"its merged\.(windows|targets) is|has no shards"):
            load_run(bad)


@pytest.mark.parametrize(
    ("reference", "arithmetic", "words"),
    [
        (None, "weights", None),
        ({"kind": "model", "engine": {"dtype": "bfloat16"}}, "weights", None),
        (
            {"kind": "stored", "engine": {"dtype": "float16"}},
            "weights",
            "base in float16, model in",
        ),
        ({"kind": "llama.cpp"}, "weights", "base in what llama.cpp chose, model in bfloat16: part"),
        ({"kind": "llama.cpp"}, "llama.cpp", None),
    ],
)
def test_other_dtypes_are_named(reference, arithmetic, words):
    record = {"engine": {"dtype": "bfloat16", "arithmetic": arithmetic}}
    found = unlike_dtypes(record if reference is None else record | {"reference": reference})
    assert (found is None) if words is None else found is not None and found.startswith(words)


SCORES = scores_of(0.3)
WINDOWS = len(set(SCORES.window.tolist()))


def record(planned=WINDOWS, stop_when="kld±5%", seed=0):
    drawn = planned and SimpleNamespace(windows=planned, conversations=UNSET)
    return SimpleNamespace(
        protocol=SimpleNamespace(stop_when=stop_when, seed=seed),
        plan=SimpleNamespace(windows=WINDOWS, planned=drawn),
    )


def test_there_is_none_without_a_rule():
    assert check_stopped(Path("run"), record(UNSET, UNSET, UNSET), SCORES, {}) == {}
    with pytest.raises(ProtocolError):
        stopping(SCORES, "kld", 0, WINDOWS, None, {})


def test_a_run_that_went_on_behind_its_end_is_refused():
    ended = stopping(SCORES, "kld±5%", 0, WINDOWS, None, {})
    assert ended["after"] < WINDOWS and ended["met"]
    with pytest.raises(RunFolderError, match=f"ends the run after {ended['after']}$"):
        check_stopped(Path("run"), record(), SCORES, {})
    with pytest.raises(RunFolderError, match=r"ends the run after more$"):
        check_stopped(Path("run"), record(WINDOWS * 3, "kld±0.001%"), SCORES, {})


def test_a_rule_and_what_was_planned_come_together():
    for lacking in ((WINDOWS, UNSET, UNSET), (UNSET,), (WINDOWS, UNSET)):
        with pytest.raises(RunFolderError, match="its protocol's stop_when is"):
            check_stopped(Path("run"), record(*lacking), SCORES, {})


@pytest.mark.parametrize(
    ("base", "own", "is_said"),
    [(4.5, 16.0, True), (4.5, 8.5, True), (16.0, 4.5, False), (16.0, 32.0, False),
     (8.5, 4.5, False), (4.5, 4.5, False), (None, 16.0, False)],
)  # fmt: skip
def test_a_base_of_fewer_bits_than_its_model_may_be_swapped(base, own, is_said):
    def checkpoint(source, body):
        return {"source": source, "bits_per_weight": {"body": body, "file": body}}

    record = {
        "checkpoint": checkpoint("big", own),
        "reference": {"source": "small.gguf", "checkpoint": checkpoint("small.gguf", base)},
    }
    line = swapped(record)
    assert (line is not None) == is_said and swapped({"checkpoint": checkpoint("x", own)}) is None
    if line is not None:
        assert line == (
            f"the base (--reference) small.gguf has 4.500 bits/weight in its layers, and the model big "
            f"{own:.3f}: are they swapped?"
        )
