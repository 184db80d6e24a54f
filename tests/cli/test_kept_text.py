"""`scoremode kld --reference DIR`: text, protocol and tokenizer are the reference's."""

import json
import shutil

import pytest
from support.programs import error_of

from scoremode.cli.main import main
from scoremode.results.folders.store import find_runs


@pytest.fixture(scope="module")
def reference(demo, tmp_path_factory):
    """Kept of a text that is gone by now."""
    folder = tmp_path_factory.mktemp("kept")
    text = folder / "gone.txt"
    text.write_text((demo / "heldout.txt").read_text(encoding="utf-8")[:4000], encoding="utf-8")
    words = ["reference", str(demo / "model"), "-f", str(text), "-c", "96", "--stride", "48"]
    assert main([*words, "--device", "cpu", "-o", str(folder / "ref"), "--quiet"]) == 0
    text.rename(folder / "still-here.txt")
    return folder / "ref"


@pytest.fixture
def kld(reference, tmp_path, monkeypatch, capsys):
    """Runs the command with the model and flags that are given: exit code, record, stderr."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def run(model, *flags):
        words = ["kld", str(model), "--reference", str(reference), "--device", "cpu"]
        code = main([*words, *flags, "-o", str(tmp_path / "runs"), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def test_nothing_needs_to_be_said_again(kld, demo, reference):
    code, record, err = kld(demo / "model")
    base = json.loads((reference / "record.json").read_text())
    # What a longer text needs is a reference of one.
    assert code == 0 and err.endswith(" would, of the reference as well\n")
    assert record["metrics"]["kld"]["value"] == 0
    for section in ("corpus", "protocol", "plan", "tokenizer"):
        assert record[section] == base[section]
    assert record["metrics"]["bits_per_byte"] is not None
    assert record["metrics"]["ppl"]["value"] == base["metrics"]["ppl"]["value"]


def test_what_is_said_and_the_same_is_taken_as_well(kld, demo, reference):
    text = str(reference.parent / "still-here.txt")
    _, kept, _ = kld(demo / "model")
    flags = ["-f", text, "--protocol", "score-mode", "-c", "96", "--stride", "48"]
    _, named, _ = kld(demo / "model", *flags)
    assert named["plan"] == kept["plan"] and named["metrics"] == kept["metrics"]
    assert kld(demo / "model", "-f", text)[0] == 0


def test_a_model_without_a_tokenizer_has_the_reference_s(kld, demo, tmp_path):
    shutil.copytree(demo / "model", tmp_path / "bare")
    for file in (tmp_path / "bare").glob("tokenizer*"):
        file.unlink()
    code, record, _ = kld(tmp_path / "bare")
    assert code == 0 and record["tokenizer"]["source"] == str(demo / "model")


def test_a_tokenizer_written_anew_is_proven(kld, demo, tmp_path):
    shutil.copytree(demo / "model", tmp_path / "anew")
    file = tmp_path / "anew" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=3))
    code, record, _ = kld(tmp_path / "anew")
    assert code == 0 and record["metrics"]["kld"]["value"] == 0


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["-c", "64"], 1, "context_length is 96, this run's 64"),
        (["--bos", "never"], 1, "bos is auto, this run's never"),
        (["--text", "another one " * 50], 1, "is of another plan: its text is"),
        (["--num-samples", "3"], 2, "--num-samples 3"),
        (["--split", "train"], 2, "--split train"),
        (["--text-field", "body"], 2, "--text-field body"),
    ],
)
def test_what_contradicts_it_is_one_line(kld, demo, reference, tmp_path, flags, code, words):
    got, record, err = kld(demo / "model", *flags)
    assert (got, record) == (code, None) and error_of(err)
    assert words in err and str(reference) in err
    assert not list(find_runs(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("part", "value"), [("normalizer", {"type": "Lowercase"}), ("decoder", None)]
)
def test_a_text_that_its_ids_do_not_spell_is_scored_all_the_same(part, value, demo, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(demo / "model", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps(tokenizer | {part: value}))
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:1000]
    own, ref = ["--device", "cpu", "--quiet"], tmp_path / "ref"
    flags = ["--text", text, "-c", "96", "--stride", "48", "-o", str(ref)]
    assert main(["reference", str(model), *flags, *own]) == 0
    words = ["kld", str(model), "--reference", str(ref), "-o", str(tmp_path / "runs")]
    assert main([*words, *own]) == 0
    ((_, record),) = find_runs(tmp_path / "runs")
    assert record["metrics"]["kld"]["value"] == 0
    assert record["tokenizer"]["auto_tokenizer"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/no/such/ref", "/no/such/ref: no such folder\n"),
        ("nosuchref", "nosuchref: no such folder, and not to be had from the hub"),
    ],
)
def test_a_reference_that_is_not_there_is_named_and_no_data_set(kld, demo, name, words):
    code, _, err = kld(demo / "model", "--reference", name)
    assert code == 1 and words in err and "wikitext" not in err
