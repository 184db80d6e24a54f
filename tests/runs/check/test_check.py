"""check: true runs hold whole; every damaged or forged one is told, and by what is wrong with it."""

import copy
import json
import random
import shutil

import numpy as np
import pytest
from support.forged_runs import cut, flipped, forged, sealed, wrong
from support.record_fields import mutations
from support.records import typed

from scoremode.cli.main import main
from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.store import RECORD, SCORES, find_runs
from scoremode.runs.check.check import Rerun, check
from scoremode.runs.check.inputs import Sources


@pytest.mark.parametrize("name", ["ppl", "against_kept", "against_model", "kept"])
def test_a_true_run_holds_whole_and_its_second_run_gives_the_same_bits(name, published):
    model = published.model if name == "kept" else published.quant
    result = check([getattr(published, name)], rerun=Rerun(str(model)))
    counts, run = result["counts"], result["runs"][0]
    assert wrong(result) == {} and counts["unchecked"] == 0 and counts["held"] > 50
    assert counts["held"] == sum(f["status"] == "held" for f in run["findings"])
    again = run["second_run"]
    assert again["same_bits"] and again["conditions"] == [] and again["ppl_moved"] == 0
    # A tenth of 23 are 2, which are in two micro-batches of a window alone or in one or two others.
    assert again["of_windows"] == 23 and 2 <= len(again["windows"]) <= 4
    columns = run["findings"][-1]["words"]
    assert ("kld" in columns) == (name.startswith("against")) and "logprob" in columns
    assert ("jsd" in columns) == (name == "against_model")


def better(columns: dict) -> None:
    """Log-probabilities a little nearer to 0 than were measured, wherever none becomes impossible."""
    miss = columns["top1"] != columns["target"]
    columns["logprob"] = np.where(miss, columns["logprob"] - 0.01, columns["logprob"])


def other_ids(columns: dict) -> None:
    """Another id wherever neither model's likeliest one was or becomes the target."""
    target, other = columns["target"], columns["target"] ^ 1
    kept = (columns["top1"] == target) | (columns["base_top1"] == target)
    kept |= (columns["top1"] == other) | (columns["base_top1"] == other)
    columns["target"] = np.where(kept, target, other)


def one_window_less(columns: dict) -> None:
    keep = columns["window"] < columns["window"].max()
    columns.update({name: column[keep] for name, column in columns.items()})


def better_base(columns: dict) -> None:
    columns["base_logprob"] = columns["base_logprob"] - 0.01 * (
        columns["base_top1"] != columns["target"]
    )


FORGERIES = {
    # name: (run, what is done to the columns, what is done to the record, what is told)
    "token ids": ("against_model", other_ids, None, {"scores.parquet target": "rows differ)"}),
    "window dropped": ("ppl", one_window_less, None,
        {"plan windows of the text": "and its text gives", "scores.parquet targets": "rows"}),
    "base better": ("against_kept", better_base, None,
        {"reference log-probabilities": "by up to 0.01 nats"}),
    "base better, and a replay that says so": ("against_kept", better_base,
        lambda r: r["reference"]["replay"].update(worst=1.0),
        {"reference log-probabilities": "nats (rms), and float32 logits explain"}),
    "protocol": ("ppl", None, lambda r: r["protocol"].update(bos="never"),
        {"protocol sha256": "what it was made of gives", "plan sha256": "gives"}),
    "perplexity": ("ppl", None, lambda r: r["metrics"]["ppl"].update(value=4.9),
        {"metrics ppl": "its metrics.ppl.value is 4.9, and its scores give"}),
    "interval": ("against_model", None, lambda r: r["llama_cpp"]["kld"].update(error=1e-9),
        {"llama_cpp kld interval": "its llama_cpp.kld.error is 1e-09"}),
    "two numbers and a note": ("against_kept", None,
        lambda r: (r["metrics"]["kld"].update(value=1e-4, note="fine"),
                   r["distribution"]["kld"].update({"99": 0.001}),
                   r["worst"][3].update(target_text="other")),
        {"metrics kld": "0.0001", "metrics kld interval": "fine",
         "distribution kld": "distribution.kld.99", "worst 3 text": "other"}),
    "gate": ("against_kept", None, lambda r: r["gates"][0].update(limit=1e-9),
        {"gates max_kld": "its gates.max_kld.met is True, and its scores give False"}),
    "bits per weight": ("ppl", None, lambda r: r["checkpoint"]["bits_per_weight"].update(body=2.5),
        {"checkpoint bits_per_weight": "body is 2.5, and its files give 4.5"}),
    "another model's hash": ("ppl", None,
        lambda r: r["checkpoint"]["files"].update({"model.safetensors": "ab" * 32}),
        {"checkpoint model.safetensors": "the record says abababababab…"}),
    "another text's hash": ("ppl", None, lambda r: r["corpus"]["text"].update(sha256="ab" * 32),
        {"text sha256": "the record says abababababab…"}),
    "another tokenizer's hash": ("ppl", None, lambda r: r["tokenizer"].update(sha256="ab" * 32),
        {"tokenizer sha256": "the record says abababababab…"}),
    "identity": ("ppl", None, lambda r: r["identity"].update(checkpoint="cd" * 32),
        {"record identity.checkpoint": "the record says cdcdcdcdcdcd…"}),
    "another base's sha256": ("against_model", None, lambda r: r["reference"].update(sha256="ab" * 32),
        {"reference sha256": "its files and arithmetic give"}),
    "a kept base's sha256": ("against_kept", None, lambda r: r["reference"].update(sha256="ab" * 32),
        {"reference sha256": "the base in"}),
    "a kept base in more digits": ("against_kept", None,
        lambda r: r["reference"]["engine"].update(dtype="float16"),
        {"reference engine": "its reference.engine.dtype is float16"}),
    "a better kept base": ("against_kept", None,
        lambda r: r["reference"]["metrics"]["ppl"].update(value=4.9),
        {"reference metrics": "its reference.metrics.ppl.value is 4.9"}),
    "a base in more digits": ("against_model", None,
        lambda r: r["reference"]["engine"].update(dtype="float16"),
        {"reference engine": "its reference.engine.dtype is float16"}),
    "another kind of base": ("against_kept", None, lambda r: r["reference"].update(kind="other"),
        {"reference kind": "the record says other"}),
    "another protocol's name": ("ppl", None,
        lambda r: r["protocol"].update(name="llama.cpp+context-length=64"),
        {"protocol name": "llama.cpp+context-length=64 has text raw-file, and the record rows"}),
    "a change that the protocol's name hides": ("ppl", None,
        lambda r: r["protocol"].update(name="disjoint"),
        {"protocol name": "disjoint has context_length 2048, and the record 64"}),
    "another text's name": ("ppl", None,
        lambda r: r["corpus"].update(name="wikitext wikitext-2-raw-v1 test"),
        {"text name": "the record says wikitext wikitext-2-raw-v1 test"}),
    "another rule for the text": ("ppl", None, lambda r: r["corpus"]["text"].update(rule="raw-file"),
        {"text rule": "the record says raw-file, and its protocol has rows"}),
    "no base in the record": ("against_kept", None, lambda r: r.pop("reference"),
        {"reference section": "the scores have a base, and the record none"}),
    "a section of another type": ("ppl", None,
        lambda r: (r.update(checkpoint=[]), r["metrics"].update(nll=1)),
        {"record schema": "its metrics.nll is 1", "record sections": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_and_resealed_run_is_told(name, published, tmp_path):
    run, columns, record, told = FORGERIES[name]
    folder = forged(getattr(published, run), tmp_path / "run", record or (lambda _: None), columns)
    found = wrong(check([folder]))
    assert "record seal" not in found and "scores.parquet sha256" not in found
    for what, words in told.items():
        if what != "record sections":
            assert words in found[what], found


def test_scores_that_were_made_better_are_told_by_a_second_run_alone(published, tmp_path):
    folder = forged(published.ppl, tmp_path / "run", columns=better)
    assert wrong(check([folder])) == {}
    found = wrong(check([folder], rerun=Rerun(str(published.quant))))
    assert list(found) == ["second run scores"]
    assert "differ in logprob in" in found["second run scores"]
    assert "though device, versions and options are the record's" in found["second run scores"]


def test_who_knows_the_seed_can_forge_the_windows_that_it_leaves_out(published, tmp_path):
    """Seed 0 draws one of nine micro-batches; the scores of all others are better than measured."""
    model = str(published.quant)
    (known,) = (
        run["second_run"] for run in check([published.ppl], rerun=Rerun(model, seed=0))["runs"]
    )

    def others_better(columns: dict) -> None:
        changed = dict(columns)
        better(changed)
        is_drawn = np.isin(columns["window"], known["windows"])
        columns["logprob"] = np.where(is_drawn, columns["logprob"], changed["logprob"])

    folder = forged(published.ppl, tmp_path / "run", columns=others_better)
    seeds = iter([0, 1])
    drawn = []
    for found in ([], ["second run scores"]):
        result = check([folder], rerun=Rerun(model), entropy=lambda: next(seeds))
        assert list(wrong(result)) == found
        drawn.append(result["runs"][0]["second_run"])
    assert [again["seed"] for again in drawn] == [0, 1]
    assert drawn[0]["windows"] == known["windows"] != drawn[1]["windows"]
    # One micro-batch of nine is drawn, two of which are of a window alone; 12 windows are in four.
    assert known["of_windows"] == 23 and len(known["windows"]) == 3
    assert known["found_probability"] == pytest.approx({"1": 1 / 9, "3": 1 / 9, "12": 4 / 9})


def test_the_seed_is_the_systems_unless_it_is_given(published, monkeypatch):
    from scoremode.runs.check import check as module

    monkeypatch.setattr(
        module,
        "_check",
        lambda folder, sources, rerun, *_: {
            "seed": rerun.seed,
            "counts": {"held": 0, "unchecked": 0, "wrong": 0},
        },
    )
    monkeypatch.setattr(module.secrets, "randbits", lambda bits: 2**bits - 1)
    for seed, used in ((None, 2**32 - 1), (0, 0), (7, 7)):
        result = check([published.ppl], rerun=Rerun(str(published.quant), seed=seed))
        assert result["runs"][0]["seed"] == used


def test_another_model_is_told_as_one(published, tmp_path):
    found = wrong(check([published.ppl], rerun=Rerun(str(published.model))))
    assert found.keys() >= {"checkpoint fingerprint", "checkpoint formats", "second run scores"}
    assert "plan token ids of the text" not in found and "text sha256" not in found


def test_another_text_is_told_as_one(published, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(published.text.read_bytes().replace(b"the", b"teh", 1))
    result = check([published.ppl], Sources(files=(other,)), Rerun(str(published.quant)))
    found = wrong(result)
    assert {"text sha256", "plan token ids of the text", "text source's sha256"} <= found.keys()
    assert not any(name.startswith(("checkpoint", "second run")) for name in found)
    last = result["runs"][0]["findings"][-1]
    assert last["status"] == "unchecked" and "scores are of other targets: " in last["words"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run, _: (run / SCORES).unlink(), {"scores.parquet file"}),
        (lambda run, _: cut(run / SCORES), {"scores.parquet sha256", "scores.parquet columns"}),
        (lambda run, _: flipped(run / SCORES), {"scores.parquet sha256"}),
        (lambda run, other: shutil.copy(other / SCORES, run), {"scores.parquet sha256"}),
        (lambda run, _: cut(run / RECORD), {"record JSON"}),
        (lambda run, _: (run / RECORD).write_text("[]"), {"record JSON"}),
    ],
)
def test_a_damaged_run_is_told(damage, told, published, tmp_path):
    run = shutil.copytree(published.ppl, tmp_path / "run")
    damage(run, published.against_kept)
    assert told <= wrong(check([run])).keys()


def test_an_edited_record_that_is_not_resealed_is_told_by_seal_and_number(published, tmp_path):
    run = shutil.copytree(published.ppl, tmp_path / "run")
    record = json.loads((run / RECORD).read_text())
    record["metrics"]["nll"]["value"] = 1.0
    (run / RECORD).write_text(json.dumps(record))
    assert {"record seal", "metrics nll"} == wrong(check([run])).keys()


def test_what_is_not_here_is_not_checked_and_said_so(published, tmp_path):
    def away(record: dict) -> None:
        record["checkpoint"]["path"] = record["tokenizer"]["source"] = "/gone/model"
        record["corpus"]["source"] = "gone.txt"
        record["versions"]["scoremode"] = "0.0.9"

    run = forged(published.ppl, tmp_path / "run", away)
    result = check([run])
    left = {
        f"{f['part']} {f['name']}": f["words"]
        for f in result["runs"][0]["findings"]
        if f["status"] == "unchecked"
    }
    assert "record identity.versions" in wrong(result)
    assert "made by scoremode 0.0.9, and here is" in left["metrics ppl interval"]
    assert "gone.txt here: --file PATH" in left["text sha256"]
    assert "/gone/model here: --model PATH" in left["checkpoint files"]
    assert left["plan token ids"] == "needs the text"
    named = Sources(str(published.quant), None, None, (published.text,))
    again = check([run], named)
    assert {"metrics ppl interval", "intervals blocks"} <= {
        f"{f['part']} {f['name']}"
        for f in again["runs"][0]["findings"]
        if f["status"] == "unchecked"
    }
    assert again["counts"]["unchecked"] < result["counts"]["unchecked"]


def test_a_run_of_relative_places_is_checked_from_any_folder(published, tmp_path, monkeypatch):
    """Model, tokenizer, text and base are found alike."""
    monkeypatch.chdir(published.text.parent)
    how = "kld W4A16 --reference kept --tokenizer model -f text.txt -c 64 --protocol disjoint"
    how += f" --batch-size 3 --device cpu --quiet -o {tmp_path / 'runs'}"
    assert main(how.split()) == 0
    (run,) = (folder for folder, _ in find_runs(tmp_path / "runs"))
    for place in (published.text.parent, tmp_path):
        monkeypatch.chdir(place)
        result = check([run], rerun=Rerun(str(published.quant)))
        assert wrong(result) == {} and result["counts"]["unchecked"] == 0


def test_several_runs_and_folders_of_them_add_up(published, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(published.ppl, folder / "a")
    shutil.copytree(published.ppl, folder / "b")
    broken = shutil.copytree(published.ppl, folder / "c")
    (broken / RECORD).write_text("{")
    notes: list[str] = []
    result = check([folder, published.against_kept], notify=notes.append)
    assert len(result["runs"]) == 3 and len(notes) == len(result["left_out"]) == 1
    assert result["counts"]["unchecked"] == 1 and result["counts"]["wrong"] == 0
    assert result["counts"]["held"] == sum(run["counts"]["held"] for run in result["runs"])


def test_what_is_no_finished_run_and_a_share_that_is_none_are_refused(published, tmp_path):
    with pytest.raises(RunFolderError, match="is not there"):
        check([tmp_path / "nothing"])
    run = shutil.copytree(published.ppl, tmp_path / "run")
    record = json.loads((run / RECORD).read_text())
    sealed(run, record | {"status": "running", "parts": []})
    with pytest.raises(RunFolderError, match="is not done: its status is 'running'"):
        check([run])
    with pytest.raises(UsageError, match="--share 0: must be above 0"):
        check([published.ppl], rerun=Rerun("model", share=0))


def test_whatever_a_record_holds_is_a_finding_or_a_refusal(published, tmp_path, monkeypatch):
    """A sample of all its fields removed or of another type: never another error."""
    from scoremode.results.audit import numbers
    from scoremode.results.folders.store import read_columns, read_record

    run = shutil.copytree(published.against_model, tmp_path / "run")
    record = read_record(run)
    scores, extras = read_columns(run / SCORES)
    # What is made of the scores is the same each time; opening the models is, too.
    made = numbers.remade(typed(record), scores, extras)
    monkeypatch.setattr(numbers, "remade", lambda *_: copy.deepcopy(made))
    monkeypatch.setattr("scoremode.runs.check.files._audit", lambda *_: None)
    monkeypatch.setattr("scoremode.runs.check.check.audit_checkpoint", lambda *_: None)
    changes = list(mutations(record))
    told = 0
    for _, changed in random.Random(0).sample(changes, 60):
        sealed(run, dict(changed))
        try:
            told += bool(wrong(check([run])))
        except RunFolderError:
            told += 1
    assert told > 30


@pytest.mark.parametrize(("field", "value"), [("dtype", "float8"), ("arithmetic", "another's")])
def test_an_engine_that_cannot_be_had_again_is_said(field, value, published, tmp_path):
    run = forged(published.ppl, tmp_path / "run", lambda r: r["engine"].update({field: value}))
    result = check([run], rerun=Rerun(str(published.quant)))
    last = result["runs"][0]["findings"][-1]
    assert last["part"] == "second run" and last["status"] == "unchecked"
    assert "not made: " in last["words"] and "engine" in last["words"]
