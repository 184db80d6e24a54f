"""Each field of real records, edited and all hashes made anew: told, or listed as not checked.

`SCOREMODE_TORTURE` (1 without it) is how often a few fields of each record are drawn that must be told.
Those that are listed as not checked are edited in any case, and all at once.
"""

import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from support.forged_runs import wrong
from support.resealed_records import edited, fields_of, is_open

from scoremode.errors import RunFolderError
from scoremode.results.audit.findings import class_of
from scoremode.results.folders.store import RECORD, read_record, read_scores
from scoremode.runs.check.check import Rerun, check

TIMES = int(os.environ.get("SCOREMODE_TORTURE", "1"))
RUNS = ("ppl", "against_kept", "against_model", "kept", "chats")


@pytest.fixture(params=RUNS)
def run(request, published, chats, tmp_path) -> Path:
    """A copy of a finished run, beside nothing that it needs: its record names their places."""
    true = chats / "run" if request.param == "chats" else getattr(published, request.param)
    return Path(shutil.copytree(true, tmp_path / "run"))


def told(run: Path, record: dict, rerun: Rerun | None = None) -> list[str]:
    """What is wrong with the run as the record has it, and what a second run couldn't hold."""
    (run / RECORD).write_text(json.dumps(record))
    try:
        result = check([run], rerun=rerun)
    except RunFolderError as error:
        return [str(error)]
    found = [f for f in result["runs"][0]["findings"] if f["part"] == "second run"]
    return [*wrong(result).values(), *(f["words"] for f in found if f["status"] != "held")]


def test_an_edit_is_told_or_its_field_is_listed(run):
    record, scores = read_record(run), read_scores(run)
    listed = check([run])["runs"][0]["not_checked"]
    fields = fields_of(record)
    covered = {f for f in fields if any(f == n or f.startswith(f"{n}.") for n in listed)}
    again = {f for f in fields if f.startswith("identity.") and is_open(f, record)}
    assert covered | again == {f for f in fields if is_open(f, record)}
    # Where something lies decides what else can be looked at.
    places = {f for f in covered | again if f.endswith((".source", ".path"))}
    for names in (covered | again) - places, places:
        other = record
        for name in sorted(names):
            other = edited(other, fields[name], scores) or other
        assert other != record
        assert told(run, other) == []
    held = sorted(set(fields) - covered - again)
    missed = []
    for name in Random(0).sample(held, min(len(held), 12 * TIMES)):
        if (other := edited(record, fields[name], scores)) and not told(run, other):
            missed.append(name)
    assert missed == []


@pytest.mark.parametrize("name", ["ppl", "against_model"])
def test_a_second_run_holds_what_follows_from_model_and_options(name, published, tmp_path):
    run = Path(shutil.copytree(getattr(published, name), tmp_path / "run"))
    record, scores = read_record(run), read_scores(run)
    rerun = Rerun(str(published.quant), seed=0)
    listed = check([run], rerun=rerun)["runs"][0]["not_checked"]
    fields = {
        f: path for f, path in fields_of(record).items()
        if class_of(f) == "second run" and not f.startswith("identity.")
    }  # fmt: skip
    assert not any(f == n or f.startswith(f"{n}.") for f in fields for n in listed)
    drawn = Random(name).sample(sorted(fields), min(len(fields), 3 * TIMES))
    for field in [*drawn, "engine.dtype"]:
        if (other := edited(record, fields[field], scores)) is not None:
            assert told(run, other, rerun), field


def test_an_engine_that_no_base_can_have_is_no_crash(published, tmp_path):
    run = Path(shutil.copytree(published.against_model, tmp_path / "run"))
    record = read_record(run)
    record["reference"]["engine"]["dtype"], model = "float33", str(published.quant)
    assert any("reference.engine.dtype" in words for words in told(run, record, Rerun(model)))
