"""Kept predictions in place of a model: the bits that the model gave, records, refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.llama_cpp.files import CONTEXT, GOLDEN, TEXT_BYTES
from support.run_requests import request

from scoremode.checkpoint.model_files import ModelFiles
from scoremode.cli.main import main
from scoremode.engines.replay.engine import KeptRun
from scoremode.errors import ReferenceUnusable, RunFolderError, TokenizerError
from scoremode.llama_cpp.file import LogitsFile
from scoremode.results.folders.store import find_runs, read_record, read_scores
from scoremode.runs.measure import measure
from scoremode.runs.models import predictions_in, replayed

CPU = ["--device", "cpu", "--max-memory", "2M"]


@pytest.fixture(scope="module")
def kept_quant(quant, text, tmp_path_factory) -> Path:
    """The quantized model's predictions, in several passes."""
    folder = tmp_path_factory.mktemp("kept-quant") / "quant"
    record = measure(request(quant, text, folder, keep="stored")).record.document
    assert len(record["kept"]["states"]["files"]) > 2
    return folder


def columns_of(folder: Path) -> dict[str, np.ndarray]:
    return read_scores(folder).columns()


def assert_same_columns(one: Path, other: Path) -> None:
    a, b = columns_of(one), columns_of(other)
    assert a.keys() == b.keys()
    for name, column in a.items():
        assert np.array_equal(column, b[name]), name


def ran(*words: object) -> tuple[Path, dict]:
    """The one run that a command leaves in the folder behind -o."""
    arguments = [str(word) for word in words]
    assert main([*arguments, *CPU]) == 0
    ((folder, record),) = find_runs(Path(arguments[arguments.index("-o") + 1]), print)
    return folder, record


def test_perplexity_has_the_bits_of_the_kept_run(kept_quant, tmp_path, capsys):
    folder, record = ran("ppl", kept_quant, "-o", tmp_path)
    assert_same_columns(folder, kept_quant)
    theirs = read_record(kept_quant)
    assert record["metrics"] == theirs["metrics"]
    assert record["plan"] == theirs["plan"] and record["checkpoint"] == theirs["checkpoint"]
    engine = record["engine"]
    assert engine["engine"] == "replay" and engine["tokens"] == 0
    assert (engine["dtype"], engine["arithmetic"]) == ("bfloat16", "weights")
    replayed = engine["replayed"]
    assert replayed["run_sha256"] == theirs["sha256"] and replayed["kind"] == "stored"
    assert replayed["sha256"] == theirs["kept"]["sha256"] and replayed["engine"] == theirs["engine"]
    assert replayed["check"]["bitwise"] and replayed["check"]["rows"] == theirs["plan"]["scored"]
    assert "no layer ran" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], ["--full", "--draft", "0.7"]])
def test_divergence_has_the_bits_of_the_models_own_run(
    kept, kept_quant, quant, tmp_path, monkeypatch, flags
):
    batch = ["--batch-size", "4"]
    whole, theirs = ran("kld", quant, "--reference", kept, "-o", tmp_path / "model", *flags, *batch)
    monkeypatch.setattr(
        "scoremode.engines.torch.engine.TorchEngine.__init__", lambda *_: pytest.fail("a model")
    )
    folder, record = ran("kld", kept_quant, "--reference", kept, "-o", tmp_path / "kept", *flags)
    assert_same_columns(folder, whole)
    for name in ("metrics", "distribution", "breakdown", "survival"):
        assert record[name] == theirs[name], name
    # Two runs of one base can be ranked together.
    assert record["reference"]["sha256"] == theirs["reference"]["sha256"]
    assert record["reference"]["replay"]["bitwise"]


def test_a_model_beside_it_gives_the_same_bits(base, kept, kept_quant, tmp_path):
    stored, _ = ran("kld", kept_quant, "--reference", kept, "-o", tmp_path / "stored")
    live, record = ran("kld", kept_quant, "--reference", base, "-o", tmp_path / "live")
    assert_same_columns(stored, live)
    assert record["reference"]["engine"]["dtype"] == "bfloat16"


def test_drawn_windows_are_those_of_the_models_own_run(kept, kept_quant, quant, tmp_path):
    flags = ["--reference", kept, "--stop-when", "kld±90%", "--seed", "3"]
    whole, theirs = ran("kld", quant, "-o", tmp_path / "model", *flags, "--batch-size", "4")
    folder, record = ran("kld", kept_quant, "-o", tmp_path / "kept", *flags)
    assert record["stopping"]["after"] == theirs["stopping"]["after"]
    ours, wanted = columns_of(folder), columns_of(whole)
    assert np.array_equal(ours["window"], wanted["window"])
    # The kept run's micro-batches hold other rows than windows that are drawn.
    assert ours["kld"] == pytest.approx(wanted["kld"], abs=1e-5)


def test_a_text_that_is_named_must_be_the_kept_one(demo, text, kept_quant, tmp_path, capsys):
    words = ["--protocol", "disjoint", "-c", "64", "--tokenizer", str(demo / "model")]
    folder, _ = ran("ppl", kept_quant, "-o", tmp_path / "a", "--text", text, *words)
    assert_same_columns(folder, kept_quant)
    for given, said in (
        (["--text", text[:3000], *words], "its text is text (6,008 bytes)"),
        (
            ["--text", text, *words[:2], "-c", "32", *words[4:]],
            "its protocol's context_length is 64",
        ),
    ):
        arguments = ["ppl", str(kept_quant), "-o", str(tmp_path / "b"), *given, *CPU]
        assert main(arguments) == ReferenceUnusable.exit_code
        error = capsys.readouterr().err
        assert f"{kept_quant}: is of another plan: {said}" in error, error
    assert not (tmp_path / "b").exists()


def test_a_limit_takes_the_first_windows(kept_quant, tmp_path):
    whole = columns_of(kept_quant)
    folder, record = ran("ppl", kept_quant, "-o", tmp_path, "--limit", "3")
    assert record["plan"]["windows"] == 3
    for name, column in columns_of(folder).items():
        assert np.array_equal(column, whole[name][: record["plan"]["scored"]]), name


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--arithmetic", "weights"], "--arithmetic weights: "),
        (["--batch-size", "2"], "--batch-size 2: "),
        (["--engine", "vllm"], "--engine vllm: "),
        (["--shard", "1/2"], "--shard 1/2: "),
        (["--swap", "layers.0=other"], "--swap layers.0=other: "),
        (["--kv-cache", "q8_0"], "--kv-cache q8_0: "),
    ],
)
def test_flags_of_layers_are_refused(kept_quant, tmp_path, capsys, flags, said):
    assert main(["ppl", str(kept_quant), "-o", str(tmp_path / "runs"), *flags, *CPU]) == 2
    error = capsys.readouterr().err
    assert f"{said}{kept_quant} holds predictions that are kept already, and no layer runs" in error


def test_a_base_that_runs_once_more_is_refused(kept, kept_quant, tmp_path, capsys):
    arguments = ["kld", str(kept_quant), "--reference", str(kept), "-o", str(tmp_path / "runs")]
    assert main([*arguments, "--noise-floor", "auto", *CPU]) == 2
    assert "--noise-floor auto: " in capsys.readouterr().err


def test_damage_is_told_before_a_score_is_written(kept_quant, text, tmp_path, capsys):
    spoiled = shutil.copytree(kept_quant, tmp_path / "spoiled")
    states = next((spoiled / "states").iterdir())
    data = bytearray(states.read_bytes())
    data[-1] ^= 1
    states.write_bytes(data)
    output = tmp_path / "runs"
    assert main(["ppl", str(spoiled), "-o", str(output), *CPU]) == ReferenceUnusable.exit_code
    error = capsys.readouterr().err
    assert f"{states}: its sha256 is" in error and "Traceback" not in error
    assert not list(find_runs(output, print))
    record = json.loads((spoiled / "record.json").read_text())
    (spoiled / "record.json").write_text(json.dumps({**record, "status": "running"}))
    assert main(["ppl", str(spoiled), "-o", str(output), *CPU]) == RunFolderError.exit_code


def test_a_run_that_kept_nothing_is_no_model(quant, text, tmp_path, capsys):
    run = measure(request(quant, text, tmp_path / "runs")).folder
    assert main(["ppl", str(run), "-o", str(tmp_path), *CPU]) == ReferenceUnusable.exit_code
    assert f"{run}: is a run that kept no states" in capsys.readouterr().err


def test_resume_finds_the_run_again(kept, kept_quant, quant, text, tmp_path):
    asked = replayed(request(kept_quant, text, tmp_path, reference=str(kept)), KeptRun(kept_quant))
    first = measure(asked)
    again = measure(replace(asked, resume=True))
    assert again.folder == first.folder


def test_finished_runs_of_several_stay_results(kept, kept_quant, quant, tmp_path):
    """Beside other models a finished run's folder is ranked as it is."""
    folder, _ = ran("kld", kept_quant, "--reference", kept, "-o", tmp_path / "one")
    output = tmp_path / "several"
    words = ["kld", folder, quant, "--reference", kept, "-o", output, "--batch-size", "4"]
    assert main([*map(str, words), *CPU]) == 0
    assert len(list(find_runs(output, print))) == 1


def test_a_card_and_a_check_of_a_replayed_run(kept, kept_quant, tmp_path, capsys):
    folder, _ = ran("kld", kept_quant, "--reference", kept, "-o", tmp_path / "runs")
    assert main(["check", str(folder)]) == 0
    assert main(["show", str(folder), "-v"]) == 0
    out = capsys.readouterr().out
    assert "kept predictions of the torch engine" in out


@pytest.fixture(scope="module")
def tools_text(demo, tmp_path_factory) -> Path:
    """What llama-perplexity was given."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_bytes((demo / "heldout.txt").read_bytes()[:TEXT_BYTES])
    return file


def of_tool(text: Path) -> list[str]:
    return ["-f", str(text), "--protocol", "llama.cpp", "-c", str(CONTEXT)]


@pytest.fixture(scope="module")
def kept_base(base, tools_text, tmp_path_factory) -> Path:
    """The demo model in float32, under llama.cpp's protocol."""
    folder = tmp_path_factory.mktemp("kept-base") / "base"
    words = ["reference", base, "-o", folder, *of_tool(tools_text), "--dtype", "float32"]
    assert main([*map(str, words), "--batch-size", "1", *CPU]) == 0
    return folder


def test_the_tools_file_against_the_model_that_it_ran(base, kept_base, tmp_path, capsys):
    """llama.cpp in float32 computed the same: what is left is its steps, and the shape of its tail."""
    folder, record = ran("kld", GOLDEN, "--reference", kept_base, "-o", tmp_path)
    assert "16-bit codes in steps of up to" in capsys.readouterr().out
    scores, file = read_scores(folder), LogitsFile(GOLDEN)
    rows = np.arange(len(scores))
    # But for the tail it is the file's own value, as llama.cpp has it.
    assert scores.logprob == pytest.approx(file.stored_logprob(rows, scores.target), abs=1e-4)
    assert np.abs(scores.against.kld).max() < 1e-4 and np.abs(scores.against.kld.mean()) < 1e-5
    final = GOLDEN.with_name("base.txt").read_text().splitlines()[-1]
    assert record["metrics"]["ppl"]["value"] == pytest.approx(float(final.split()[4]), rel=3e-5)
    replayed, engine = record["engine"]["replayed"], record["engine"]
    assert replayed["kind"] == "llama.cpp" and replayed["sha256"] == file.read_all().sha256
    assert replayed["step_nats"] * 65535 == replayed["reach_nats"]
    assert engine["arithmetic"] == "llama.cpp's own"
    checkpoint = record["checkpoint"]
    assert checkpoint["files"] == {GOLDEN.name: replayed["sha256"]}
    assert checkpoint["bits_per_weight"] == {"body": None, "file": None}
    assert "bytes" not in checkpoint and "holds no weights" in checkpoint["not_decoded"]
    assert record["reference"]["arithmetic"].startswith("base in float32, model in what llama.cpp")


def test_an_exported_file_is_near_the_run_that_it_was_made_of(
    quant, kept_base, tools_text, tmp_path
):
    kept = tmp_path / "quant"
    words = ["reference", quant, "-o", kept, *of_tool(tools_text), "--dtype", "float32"]
    words += ["--batch-size", "1", "--export-llama-cpp", tmp_path / "quant.kld"]
    assert main([*map(str, words), *CPU]) == 0
    exact, _ = ran("kld", kept, "--reference", kept_base, "-o", tmp_path / "exact")
    folder, _ = ran(
        "kld", tmp_path / "quant.kld", "--reference", kept_base, "-o", tmp_path / "file"
    )
    ours, theirs = columns_of(folder), columns_of(exact)
    assert theirs["kld"].mean() > 0.01
    assert np.array_equal(ours["top1"], theirs["top1"])
    for name in ("kld", "kld_reverse", "tv", "logprob"):
        assert ours[name] == pytest.approx(theirs[name], abs=3e-4), name


def test_a_file_needs_its_protocol_and_a_tokenizer(base, tools_text, tmp_path, capsys):
    output = tmp_path / "runs"
    words = ["ppl", str(GOLDEN), "-o", str(output), *of_tool(tools_text)]
    assert main([*words, *CPU]) == 2
    error = capsys.readouterr().err
    assert f"{GOLDEN}: doesn't say which tokenizer made its tokens: give --tokenizer PATH" in error
    words += ["--tokenizer", str(base)]
    assert main([*words, *CPU]) == 0
    for flags, said in (
        (["-c", "32"], "has context length 64, and the plan's protocol"),
        (["--stop-when", "ppl±1%"], "which is read in the order of its chunks"),
    ):
        assert main([*words, *flags, *CPU]) == ReferenceUnusable.exit_code
        error = capsys.readouterr().err
        assert f"{GOLDEN}: " in error and said in error, error


def test_damage_of_a_file_is_told_before_a_score_is_written(kept_base, tmp_path, capsys):
    spoiled = tmp_path / "spoiled.kld"
    data = bytearray(GOLDEN.read_bytes())
    data[-300:-200] = bytes(100)
    spoiled.write_bytes(data)
    words = ["kld", str(spoiled), "--reference", str(kept_base), "-o", str(tmp_path / "runs"), *CPU]
    assert main(words) == ReferenceUnusable.exit_code
    assert "of a distribution" in capsys.readouterr().err
    assert not list(find_runs(tmp_path / "runs", print))


def test_tables_of_runs_of_both_kinds(kept_base, tmp_path, capsys):
    output = tmp_path / "runs"
    for number, model in enumerate((GOLDEN, kept_base)):
        ran("kld", model, "--reference", kept_base, "-o", output / str(number), "--label", number)
    folders = [str(folder) for number in "01" for folder, _ in find_runs(output / number, print)]
    for words in (["compare"], ["show"], ["check"], ["report", "-o", str(tmp_path / "page.html")]):
        assert (
            main([words[0], *folders, *words[1:]] if words[0] != "show" else ["show", folders[0]])
            == 0
        )
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert "Traceback" not in capsys.readouterr().err


def test_the_tokenizer_is_the_one_that_the_record_names(kept_quant, quant, tmp_path, monkeypatch):
    """In Python: a request of kept predictions takes it, of the hub's models by their commit."""
    asked = replayed(request(kept_quant, "", tmp_path), predictions_in(str(kept_quant)))
    assert isinstance(asked.tokenizer, ModelFiles) and asked.tokenizer.path == quant
    assert asked.resolved().model.path == kept_quant
    monkeypatch.setattr("scoremode.runs.models.resolve_model", lambda *named: named)
    for source, found in (
        ("hub:org/name@abc", ("org/name", "abc")),
        ("hub:org/x", ("org/x", None)),
    ):
        monkeypatch.setattr(KeptRun, "tokenizer", source)
        assert replayed(request(kept_quant, "", tmp_path), KeptRun(kept_quant)).tokenizer == found
    monkeypatch.setattr(KeptRun, "tokenizer", str(tmp_path / "gone"))
    with pytest.raises(TokenizerError, match="gone any more: give --tokenizer"):
        replayed(request(kept_quant, "", tmp_path), KeptRun(kept_quant))
