"""The commands that score, and `plan`, as a user meets them; exports are in `tests/llama_cpp`."""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import specs
from support.programs import error_of, run

from scoremode.cli.measure import Kld, Ppl
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.errors import UsageError
from scoremode.results.folders.store import find_runs, read_record
from scoremode.text.corpus import from_dataset_file


def test_ppl_prints_what_a_reader_needs(base, capsys):
    code, out, err = run(capsys, *base, "-c", "32", "--protocol", "disjoint")
    assert code == 0 and err.count("\n") == 1 and "no interval and no test" in err
    for word in (
        "PPL",
        "an interval needs",
        "disjoint+context-length=32",
        "targets (scored tokens) in",
        "bits/weight",
    ):
        assert word in out
    details = ("weights (bf16)", "bits per weight", "peak memory", "tokens/s", "softmax over")
    assert "record.json" in out and not any(words in out for words in details)
    # The number comes first, then all its digits, what it is of, and the rest only where asked for.
    verdict, _, ppl, model, *_ = out.splitlines()
    assert verdict.startswith("demo: PPL ") and verdict.endswith(" on text")
    assert ppl.startswith("PPL ") and model.startswith("model ")
    folder = next(line for line in out.splitlines() if line.startswith("more ")).split()[3]
    code, again, err = run(capsys, "show", folder)
    assert (code, err) == (0, "") and again == out
    code, long, _ = run(capsys, "show", folder, "-v")
    assert code == 0 and all(words in long for words in details)


def test_json_is_the_record(base, capsys, tmp_path):
    code, out, _ = run(capsys, *base, "-c", "32", "--json")
    ((_, record),) = find_runs(tmp_path / "runs")
    assert code == 0 and json.loads(out) == record


def test_a_label_is_in_the_record_and_no_part_of_what_makes_the_scores(base, capsys, tmp_path):
    flags = [*base, "-c", "32", "--limit", "3"]
    code, out, _ = run(capsys, *flags, "--label", "tiny llama")
    assert code == 0 and re.search(r"^model +tiny llama \(", out, re.MULTILINE)
    ((folder, record),) = find_runs(tmp_path / "runs")
    assert record["label"] == "tiny llama" and "_tiny-llama_" in folder.name
    # The same command under another label finds the run, and renames it.
    code, _, err = run(capsys, *flags, "--label", "ours", "--resume")
    ((again, renamed),) = find_runs(tmp_path / "runs")
    assert code == 0 and again == folder and f"already finished: {folder}" in err
    assert renamed == record | {"label": "ours", "sha256": renamed["sha256"]}
    # Without one it keeps what it has.
    assert run(capsys, *flags, "--resume")[0] == 0 and read_record(folder) == renamed
    assert run(capsys, "show", str(folder))[1].count("ours") == 2
    assert not (folder / "parts").exists()


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("", "'' is empty"),
        (" ", "' ' is empty"),
        ("a\nb", "'a\\nb' has characters that can't be printed"),
        ("x" * 101, "'xxxxxxxxxxxxxxxxxxxx'… has 101 characters, more than 100"),
    ],
)
def test_what_is_no_label_is_refused(base, capsys, label, reason):
    code, _, err = run(capsys, *base, "--label", label)
    assert code == 2 and f"--label: {reason}" in err


def test_each_of_several_models_has_a_label(demo, capsys):
    model, text = str(demo / "model"), str(demo / "heldout.txt")
    flags = ["kld", model, "b", "--reference", model, "-f", text, "-c", "64", "--dry-run"]
    code, _, err = run(capsys, *flags, "--label", "x")
    assert code == 2
    assert "--label x: 1 labels for 2 models: give one for each, in their order" in err
    code, out, _ = run(capsys, *flags, "--label", "x", "--label", "y", "--format", "csv")
    assert code == 0
    assert [line.split(",")[:2] for line in out.splitlines()[1:]] == [
        ["demo (the base)", model], ["x", model], ["y", "b"],
    ]  # fmt: skip
    asked = ["kld", "*.x", "--reference", model, "-f", text, "--label", "x"]
    code, _, err = run(capsys, *asked)
    assert code == 2 and "--label x: *.x stands for several models" in err
    asked = ["kld", model, "--reference", model, "-f", text, "--label", "x", "--label", "y"]
    code, _, err = run(capsys, *asked)
    assert code == 2 and "--label y: one MODEL has one label, x" in err


def test_the_seeds_command_line_runs(demo, data, capsys, tmp_path, monkeypatch):
    """The seeds' flags; the model is ours, and its windows shorter. The hub's rows are a file's."""

    def from_hub(dataset, config, *, split, text_field, **others):
        assert (dataset, config, split) == ("wikitext", "wikitext-2-raw-v1", "test")
        assert set(others.values()) == {None}
        return from_dataset_file(data / "wikitext2" / "wiki.test.raw", text_field)

    monkeypatch.setattr("scoremode.text.hub.from_hub", from_hub)
    code, out, _ = run(
        capsys,
        "ppl",
        *("--model", str(demo / "model"), "--dataset", "wikitext"),
        *("--dataset-config", "wikitext-2-raw-v1", "--num-samples", "30"),
        *("--context-length", "256", "--stride", "64", "--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", "0.80", "--trust-remote-code"),
        *("--disable-custom-all-reduce", "-o", str(tmp_path), "--json"),
    )
    record = json.loads(out)
    assert code == 0
    assert record["corpus"]["row_limit"] == 30
    assert record["protocol"]["name"] == "score-mode+context-length=256+stride=64"


def test_too_little_memory_says_what_would_do(base, capsys):
    arguments = [*base, "-c", "64", "--protocol", "disjoint", "--quiet"]
    code, _, err = run(capsys, *arguments, "--max-memory", "1MiB")
    assert code == 1 and "windows of 64 tokens take" in err and "lower" not in err
    found = re.search(r"raise --max-memory by (\d+) MiB, or give --batch-size (\d+)\n$", err)
    assert found
    assert run(capsys, *arguments, "--max-memory", f"{1 + int(found[1])}MiB")[0] == 0
    assert run(capsys, *arguments, "--max-memory", "1MiB", "--batch-size", found[2])[0] == 0


@pytest.fixture(scope="module")
def comparison(demo, tmp_path_factory) -> list[str]:
    """A quick comparison of a quantized model with its base, kept or not."""
    folder: Path = tmp_path_factory.mktemp("kld") / "w4"
    quantize_folder(demo / "model", folder, VARIANTS[1])
    text = "The same value is computed once and the result is used again. " * 20
    flags = ["--text", text, "--protocol", "disjoint", "-c", "32", "--device", "cpu"]
    return ["kld", str(folder), "--reference", str(demo / "model"), *flags]


def test_gates_are_in_the_table_in_the_json_and_in_the_exit_code(comparison, capsys, tmp_path):
    output = ["-o", str(tmp_path)]
    code, out, err = run(capsys, *comparison, *output, "--max-kld", "1e-9", "--max-ppl-ratio", "5")
    assert code == 4 and out.partition("\n")[0].endswith("; MISSED --max-kld 1e-09")
    assert "--max-kld 1e-09: " in out and "NOT MET" in out and "--max-ppl-ratio 5: " in out
    assert err.splitlines()[-1].startswith("scoremode: gate not met: --max-kld 1e-9: ")
    assert err.count("\n") == 2
    # The block alone, since --quiet leaves out the table.
    code, out, err = run(
        capsys, *comparison, *output, "--max-kld", "9", "--quiet", "--llama-cpp-block"
    )
    assert (code, err) == (0, "") and out.startswith("====== Perplexity statistics ======\n")
    code, out, _ = run(capsys, *comparison, *output, "--max-kld", "9", "--json")
    shown = json.loads(out)
    (gate,) = shown["gates"]
    assert code == 0 and (gate["limit"], gate["met"]) == (9, True)
    assert {v["kind"] for v in shown.pop("verdicts")} == {"undecided"}
    assert shown in [record for _, record in find_runs(tmp_path)]


def test_a_base_is_asked_for(demo, capsys):
    code, out, err = run(capsys, "kld", str(demo / "model"), "--text", "a b")
    assert (code, out) == (2, "") and "--reference" in err


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["a", "b", "--reference", "r"], ("a", "b")),
        (["a", "--reference", "r", "b", "c"], ("a", "b", "c")),
        (["--reference", "r", "a", "b"], ("a", "b")),
        (["--reference", "r", "a"], ("a",)),
    ],
)
def test_models_may_stand_anywhere(words, models):
    spec = specs.given(Kld, *words)
    assert (spec.model, *spec.further_models) == models
    assert spec.is_sweep == (len(models) > 1)


def test_a_flag_that_there_is_not_is_refused_and_other_commands_take_one_model():
    with pytest.raises(UsageError, match="unrecognized arguments: b --none"):
        specs.given(Kld, "a", "b", "--none", "--reference", "r")
    with pytest.raises(UsageError, match="unrecognized arguments: b"):
        specs.given(Ppl, "a", "b")


def test_a_pattern_and_a_look_ahead_are_sweeps_and_a_file_of_that_name_is_not(tmp_path):
    assert specs.given(Kld, "*.gguf", "--reference", "r").is_sweep
    assert specs.given(Kld, "a", "--reference", "r", "--dry-run").is_sweep
    (tmp_path / "[a].gguf").write_text("")
    assert not specs.given(Kld, f"{tmp_path}/[a].gguf", "--reference", "r").is_sweep
    assert not specs.given(Kld, "--model", "a", "--reference", "r").is_sweep


@pytest.fixture(scope="module")
def base_run(demo) -> list[str]:
    text = "The same value is computed once and the result is used again. " * 20
    flags = ["--protocol", "disjoint", "-c", "32", "--device", "cpu"]
    return ["reference", str(demo / "model"), "--text", text, *flags]


def test_the_table_says_what_was_kept_and_where(base_run, demo, capsys, tmp_path):
    code, out, _ = run(capsys, *base_run, "-o", str(tmp_path / "ref"), "--head", "checkpoint")
    assert code == 0 and out.startswith("demo: PPL ")
    kept = read_record(tmp_path / "ref")["kept"]
    rows = dict(line.split("  ", 1) for line in out.split("\n\n")[2].splitlines())
    assert rows["states"].strip().startswith(f"{kept['states']['rows']:,} of ")
    assert rows["head"].endswith(f"left in {demo / 'model'}")
    assert rows["reference"].strip() == str(tmp_path / "ref")
    assert run(capsys, "show", str(tmp_path / "ref"))[1] == out


def test_json_is_the_record_and_a_kept_one_is_no_model(base_run, capsys, tmp_path):
    folder = str(tmp_path / "ref")
    code, out, _ = run(capsys, *base_run, "-o", folder, "--json")
    assert code == 0 and json.loads(out) == read_record(tmp_path / "ref")
    code, out, err = run(capsys, "reference", folder, "-o", str(tmp_path / "other"))
    assert (code, out) == (2, "")
    assert error_of(err).endswith(
        f"{folder}: is a run already: --export-llama-cpp FILE exports a reference, --push "
        "hub:ORG/NAME publishes it"
    )


def test_it_has_a_folder_of_its_own(base_run, capsys):
    code, out, err = run(capsys, *base_run)
    assert (code, out) == (2, "")
    assert error_of(err) == "scoremode: error: no folder to write to: give -o DIR"


def test_plan_needs_no_weights_and_no_torch(data):
    program = (
        "import sys; from scoremode.cli.main import main; "
        f"code = main(['plan', '--tokenizer', {str(data / 'tokenizers' / 'gpt2')!r}, "
        f"'--dataset-file', {str(data / 'wikitext2' / 'wiki.test.raw')!r}, '--json']); "
        "sys.exit(code or ('torch' in sys.modules) * 7)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan["windows"] > 500 and plan["scored"] == plan["windows"] * 2047


def test_windows_are_counted_without_a_model(demo, capsys):
    """16 windows of 64 are 1,024 tokens and the BOS; the first of each is no target."""
    flags = ["--tokenizer", str(demo / "model"), "-f", str(demo / "heldout.txt")]
    flags += ["--protocol", "disjoint", "-c", "64", "--limit", "16"]
    code, out, err = run(capsys, "plan", *flags)
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert rows["windows"].strip() == "16" and rows["targets"].strip().startswith("1,008 scored")


@pytest.mark.parametrize(
    "command", ["ppl", "ppl --resume", "kld --reference BASE", "reference", "demo"]
)
def test_an_output_that_is_no_folder_is_refused_before_anything_is_read(command, tmp_path, capsys):
    """`-o /dev/full` answered "remove it, or name another", which root could have done."""
    (tmp_path / "gone").symlink_to("nowhere")
    model = [] if command == "demo" else ["no/model", "--text", "hello"]
    missing = "is a link, and its target nowhere is missing"
    for output, words in (("/dev/full", "is not a folder"), (f"{tmp_path}/gone", missing)):
        code, out, err = run(capsys, *command.split(), *model, "-o", output)
        assert (code, out) == (1, "") and err == f"scoremode: error: -o {output}: {words}\n"
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
