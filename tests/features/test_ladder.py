"""`scoremode ladder` as a user meets it: steps of the torch engine, on the demo's model."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from support import ladder_kill_points
from support.gguf.golden import in_blocks, make_pair, rebuild, rewrite
from support.gguf.models import make_folder
from support.junit import read_junit
from support.programs import error_of, run
from support.warm import call

import scoremode
from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.errors import GateNotMet
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs, read_scores, seal_of
from scoremode.results.ladder import KINDS, read_ladder
from scoremode.runs.ladder import steps

POINTS = 6
LEFT_OUT = {"kv-cache", "vllm-prefill", "vllm-decode", "llama.cpp", "llama-perplexity"}


@pytest.fixture(scope="module")
def quants(demo, tmp_path_factory):
    home = tmp_path_factory.mktemp("quants")
    for variant in VARIANTS:
        if variant.name in ("W8A8", "W4A16-g32"):
            quantize_folder(demo / "model", home / variant.name, variant)
    return home


@pytest.fixture(scope="module")
def flags(demo):
    text = str(demo / "heldout.txt")
    return ["--reference", str(demo / "model"), "-f", text, "--protocol", "disjoint", "-c", "256",
            "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def finished(quants, flags, tmp_path_factory):
    """A ladder of W8A8 in bfloat16: base, weights, inputs."""
    place = tmp_path_factory.mktemp("ladder") / "whole"
    asked = ["ladder", str(quants / "W8A8"), *flags, "--dtype", "bfloat16", "-o", str(place)]
    assert main([*asked, "--quiet"]) == 0
    return place, asked


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it, and the command that goes on with it."""
    place, asked = finished
    shutil.copytree(place, tmp_path / "ladder")
    return tmp_path / "ladder", [*asked[:-1], str(tmp_path / "ladder")]


def kld_of(folder):
    against = read_scores(folder).against
    assert against is not None
    return against.kld


def test_each_step_is_beside_the_one_before_and_beside_the_base_in_float32(finished, capsys):
    place, _ = finished
    code, out, err = run(capsys, "show", str(place), "--json")
    value = json.loads(out)
    assert (code, err) == (0, "")
    done = [step["name"] for step in value["steps"] if step["status"] == "done"]
    assert done == ["base-float32", "base", "weights", "inputs"]
    left_out = {step["name"]: step["reason"] for step in value["steps"] if step["reason"]}
    assert left_out.keys() == LEFT_OUT and "--vllm-python" in left_out["vllm-decode"]
    found = value["findings"]
    lines = {line["step"]: line for line in found["steps"]}
    assert [line["before"] for line in lines.values()] == ["base-float32", "base", "weights"]
    top = {name: kld_of(place / name) for name in lines}
    earlier = np.zeros_like(top["base"])
    for step in value["steps"]:
        if (line := lines.get(step["name"])) is None:
            continue
        own, after = top[step["name"]], kld_of(place / (step["after"] or step["name"]))
        assert line["against_top"]["kld"]["value"] == pytest.approx(own.mean(), rel=1e-12)
        assert line["against_before"]["kld"]["value"] == pytest.approx(after.mean(), rel=1e-12)
        low, high = line["against_top"]["kld"]["ci95"]
        assert low < own.mean() < high
        share = line["added"]["share"]
        assert share["value"] == pytest.approx(
            (own - earlier).sum() / top["inputs"].sum(), rel=1e-9
        )
        assert share["ci95"][0] < share["value"] < share["ci95"][1]
        earlier = own
    shares = [line["added"]["share"]["value"] for line in lines.values()]
    assert sum(shares) == pytest.approx(1, rel=1e-9) and max(shares) == shares[2]
    assert found["verdict"].startswith(f"{100 * shares[2]:.3g} % [")
    assert "comes from inputs" in found["verdict"]
    assert found["verdict"].endswith("base adds nothing that rounding does not explain")
    assert not lines["base"]["judged"]["alarm"] and lines["inputs"]["judged"] is None
    assert lines["weights"]["judged"]["words"] == "no linear is out of line with its peers"
    (noise,) = value["noise"]
    of_noise = kld_of(place / noise["after"]).mean()
    (line,) = found["noise"]
    assert line["against_before"]["kld"]["value"] == pytest.approx(of_noise, rel=1e-12)


def test_its_table_its_csv_and_its_report(finished, capsys, tmp_path):
    place, _ = finished
    code, out, _ = run(capsys, "show", str(place))
    lines = out.splitlines()
    assert code == 0 and "comes from inputs" in lines[0]
    assert all(f"{name}: " in out for name in LEFT_OUT)
    assert "rounding  KLD " in out and " nats of inputs from itself (float32" in out
    _, out, _ = run(capsys, "show", str(place), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["step"] for row in rows] == list(KINDS)
    inputs = next(row for row in rows if row["step"] == "inputs")
    assert float(inputs["kld_top_nats"]) == pytest.approx(kld_of(place / "inputs").mean())
    assert next(r for r in rows if r["step"] == "kv-cache")["status"] == "left out"
    _, out, _ = run(capsys, "show", str(place), "--format", "markdown")
    assert "| weights | base |" in out
    # A folder of a ladder stands for its steps against the top.
    code, out, _ = run(capsys, "compare", str(place), "--json")
    assert [line["label"] for line in json.loads(out)["runs"]] == ["base", "weights", "inputs"]
    page = tmp_path / "report.html"
    assert run(capsys, "report", str(place), "-o", str(page))[0] == 0
    assert "From the base in float32 to what is served" in page.read_text(encoding="utf-8")


def test_states_are_gone_and_what_is_done_is_not_made_again(copied, capsys):
    place, asked = copied
    assert not list(place.rglob("*.safetensors"))
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*.parquet")}
    code, out, err = run(capsys, *asked)
    assert (code, err) == (0, "") and "comes from inputs" in out
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*.parquet")} == before
    # A run of it that was deleted is made again, with the states that it needs, and with its bits.
    scores = kld_of(place / "inputs")
    shutil.rmtree(place / "inputs")
    code, _, err = run(capsys, *asked)
    assert code == 1 and "inputs" in error_of(err)
    ladder = json.loads((place / "ladder.json").read_text())
    ladder["steps"][3] |= {"status": "waiting"}
    ladder["sha256"] = seal_of(ladder)
    (place / "ladder.json").write_text(json.dumps(ladder))
    code, out, _ = run(capsys, *asked)
    assert code == 0 and "comes from inputs" in out
    assert np.array_equal(kld_of(place / "inputs"), scores)
    assert not list(place.rglob("*.safetensors"))


def test_a_step_that_was_left_out_in_between_is_made_again(copied, capsys):
    place, asked = copied
    scores = kld_of(place / "inputs")
    code, out, err = run(capsys, *asked, "--skip", "inputs")
    assert (code, err) == (0, "") and "inputs: by --skip" in out
    assert " nats of weights from itself (float32" in out
    code, out, _ = run(capsys, *asked)
    assert code == 0 and "comes from inputs" in out and " nats of inputs from itself" in out
    assert np.array_equal(kld_of(place / "inputs"), scores)
    assert not list(place.rglob("*.safetensors"))


def test_a_few_targets_tell_nothing_of_rounding(quants, flags, capsys, tmp_path):
    asked = ["ladder", str(quants / "W8A8"), *flags, "--limit", "1", "--dtype", "bfloat16"]
    asked[asked.index("-c") + 1] = "8"
    code, out, _ = run(capsys, *asked, "-o", str(tmp_path / "ladder"))
    assert code == 0 and "base: 7 targets, and at least 64 tell rounding" in out
    assert "rounding does not explain" not in out


def test_another_tokenizer_and_a_text_that_changed_are_another_ladder(
    quants, demo, flags, capsys, tmp_path
):
    text = tmp_path / "text.txt"
    shutil.copy(demo / "heldout.txt", text)
    asked = ["ladder", str(quants / "W8A8"), *flags, "--limit", "2", "--dtype", "float32"]
    asked[asked.index("-f") + 1] = str(text)
    asked += ["--quiet", "-o", str(tmp_path / "ladder")]
    assert run(capsys, *asked)[0] == 0
    code, _, err = run(capsys, *asked, "--tokenizer", str(demo / "model"))
    assert code == 1 and "its tokenizer is [], this one's ['--tokenizer=" in error_of(err)
    text.write_text("Another one. " + text.read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = run(capsys, *asked)
    assert code == 1 and "is another ladder, of " in error_of(err) and str(text) in err


def test_a_step_that_computes_something_else_is_not_held_against_rounding(
    copied, capsys, monkeypatch
):
    place, asked = copied
    # As vLLM is, which quantizes inputs, right behind the weights.
    monkeypatch.setitem(KINDS, "inputs", "rounding")
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert "inputs: other arithmetic: inputs quantized, and those of weights not quantized" in out
    lines = json.loads((place / "ladder.json").read_text())["findings"]["steps"]
    assert lines[2]["kind"] == "lossy" and not lines[2]["judged"]["alarm"]


def test_a_manifest_that_was_changed_or_is_another_ladder_s_is_refused(copied, quants, capsys):
    place, asked = copied
    file = place / "ladder.json"
    text = file.read_text()
    value = json.loads(text)
    for wrong, said in (
        (text[: len(text) // 2], "not JSON"),
        (json.dumps({**value, "schema": "other"}), "is no ladder's manifest"),
        (json.dumps({**value, "schema_version": 2}), "is of version 2"),
        (json.dumps({**value, "base": "other"}), "was changed after it was written"),
        (json.dumps({**value, "steps": [{}]}), "was changed after it was written"),
    ):
        file.write_text(wrong)
        for command in (["show", str(place)], asked):
            code, out, err = run(capsys, *command)
            assert (code, out) == (1, "") and said in error_of(err)
    forged = json.loads(text)
    forged["findings"]["steps"][0]["against_top"]["kld"]["value"] *= 2
    outside = json.loads(text)
    outside["steps"][2]["after"] = "../elsewhere"
    for made, said in ((forged, "its runs give"), (outside, "has a step 'weights'")):
        made["sha256"] = seal_of(made)
        file.write_text(json.dumps(made))
        code, _, err = run(capsys, "show", str(place))
        assert code == 1 and said in error_of(err)
    file.write_text(text)
    code, _, err = run(capsys, "ladder", str(quants / "W4A16-g32"), *asked[2:])
    assert code == 1 and "is another ladder, of " in error_of(err) and "model name" in err
    code, _, err = run(capsys, *asked, "--limit", "8")
    assert code == 1 and "is another ladder, of " in error_of(err)
    shutil.copy(place / "base" / "scores.parquet", place / "weights" / "scores.parquet")
    code, _, err = run(capsys, "show", str(place))
    assert code == 1 and "weights" in error_of(err)


def test_a_dry_run_lists_the_command_lines_and_writes_nothing(quants, flags, capsys, tmp_path):
    place = tmp_path / "none"
    asked = ["ladder", str(quants / "W8A8"), *flags, "-o", str(place), "--dry-run"]
    code, out, err = run(capsys, *asked, "--dtype", "bfloat16", "--json", "--skip", "inputs")
    value = json.loads(out)
    assert (code, err, place.exists()) == (0, "", False)
    rows = {row["step"]: row for row in value["steps"]}
    assert list(rows) == ["base-float32", *KINDS] and rows["inputs"]["left_out"] == "by --skip"
    top, weights = rows["base-float32"]["command"], rows["weights"]["command"]
    assert top[:2] == ["scoremode", "reference"] and top[-4:-1] == ["--dtype", "float32", "-o"]
    assert weights[1:3] == ["kld", str(quants / "W8A8")] and "--keep" in weights
    assert weights[weights.index("--reference") + 1] == str(place / "base-float32")
    after = rows["weights"]["after_command"]
    assert after[1:5] == ["kld", str(place / "weights"), "--reference", str(place / "base")]
    assert value["noise"]["before"] == "weights" and "float32" in value["noise"]["command"]
    code, out, _ = run(capsys, *asked, "--dtype", "float32")
    assert "base              left out: all steps compute in float32" in out
    assert out.count("--attention eager") == 1 and not place.exists()


def test_the_steps_of_a_gguf_file_in_a_16_bit_dtype(flags, capsys, tmp_path):
    _, file = make_pair(tmp_path, "llama")
    asked = ["ladder", str(file), *flags, "--dtype", "bfloat16", "--dry-run", "--json"]
    code, out, _ = run(capsys, *asked, "-o", str(tmp_path / "none"))
    value = json.loads(out)
    rows = {row["step"]: row["command"] for row in value["steps"]}
    assert code == 0 and "bfloat16" in rows["base"] and "bfloat16" in rows["weights"]
    # llama.cpp's arithmetic has no dtype to be chosen, and another attention for its noise.
    assert "--dtype" not in rows["llama.cpp"] and value["noise"]["before"] == "llama.cpp"
    assert value["noise"]["command"][-2:] == ["--attention", "eager"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["--arithmetic", "weights"],
            "--arithmetic weights: is what the steps of a ladder differ in",
        ),
        (["--kv-cache", "int8-token"], "--kv-cache int8-token: is what the steps"),
        (["--decode"], "--decode: is what the steps of a ladder differ in"),
        (["--engine-arg", "max_model_len=7"], "--engine-arg max_model_len"),
        (["-tp", "0"], "--tensor-parallel-size 0"),
        (["--vllm-python", "/no/python"], "/no/python: is no Python"),
        (["--skip", "weights"], "--skip: invalid choice: 'weights'"),
    ],
)
def test_what_a_ladder_can_t_do_is_refused(quants, flags, capsys, tmp_path, more, said):
    asked = ["ladder", str(quants / "W8A8"), *flags, "-o", str(tmp_path / "x"), *more]
    code, out, err = run(capsys, *asked)
    assert code in (1, 2) and out == "" and said in error_of(err) and not (tmp_path / "x").exists()


def test_a_base_that_is_no_model_is_refused(finished, quants, capsys, tmp_path):
    place, _ = finished
    asked = [
        "ladder",
        str(quants / "W8A8"),
        "--reference",
        str(place / "base"),
        "-o",
        str(tmp_path),
    ]
    code, _, err = run(capsys, *asked)
    assert code == 2 and "is no model, and a ladder runs its base in float32" in error_of(err)
    code, _, err = run(capsys, "show", str(place), "--worst", "3")
    assert code == 2 and "--worst: is of one run" in error_of(err)


def test_gates_are_held_against_the_last_step(copied, capsys, tmp_path):
    place, asked = copied
    worst = float(kld_of(place / "inputs").mean())
    code, out, err = run(capsys, *asked, "--max-kld", f"{worst / 2:.3g}")
    assert code == 4 and "gate not met: --max-kld" in err and "not met by the last step" in out
    assert run(capsys, "show", str(place), "--max-kld", f"{2 * worst:.3g}")[0] == 0
    file = tmp_path / "junit.xml"
    gate = "--max-kld", f"{worst / 2:.3g}", "--junit", str(file)
    assert run(capsys, "show", str(place), *gate, "--quiet")[0] == 4
    *steps, (of, _, outcome, _) = read_junit(file.read_text())
    assert of == str(place) and outcome == "failure"
    assert steps and {outcome for _, _, outcome, _ in steps} == {"passed"}


def test_an_alarm_is_said_first_and_ends_with_exit_code_3(copied, capsys, monkeypatch):
    place, asked = copied
    said = {"alarm": True, "words": "twice the noise, everywhere"}

    monkeypatch.setattr("scoremode.results.ladder._judged", lambda *_: said)
    code, out, _ = run(capsys, *asked)
    assert code == 3 and out.startswith(
        "alarm at base: twice the noise, everywhere; alarm at inputs: "
    )
    assert run(capsys, "show", str(place))[0] == 3


def test_a_field_of_the_config_that_is_not_the_base_s_is_an_alarm(quants, flags, capsys, tmp_path):
    shutil.copytree(quants / "W4A16-g32", tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    config["rms_norm_eps"] = 10 * config["rms_norm_eps"]
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config))
    asked = ["ladder", str(tmp_path / "odd"), *flags, "--limit", "4", "--dtype", "float32"]
    code, out, _ = run(capsys, *asked, "-o", str(tmp_path / "ladder"))
    assert code == 3 and out.startswith("alarm at weights: rms_norm_eps is ")


def test_a_step_that_fails_is_named_and_the_others_stand(
    quants, flags, capsys, tmp_path, monkeypatch
):
    found = steps.find_spec
    monkeypatch.setattr(steps, "find_spec", lambda name: name == "vllm" or found(name))
    place = tmp_path / "ladder"
    asked = ["ladder", str(quants / "W4A16-g32"), *flags, "--limit", "8", "-o", str(place),
             "--dtype", "float32", "--skip", "vllm-decode"]  # fmt: skip
    code, out, err = run(capsys, *asked)
    assert code == 1 and err.endswith("steps failed, as said above: vllm-prefill\n")
    assert out.startswith("incomplete, since vllm-prefill failed; 100 % of the KLD of ")
    ladder = read_ladder(place)
    assert ladder is not None
    step = next(step for step in ladder["steps"] if step["name"] == "vllm-prefill")
    assert step["status"] == "failed" and "vllm" in str(step["reason"])
    # What another try needs is still there.
    assert (place / "weights" / "states").is_dir() and (place / "base-float32" / "states").is_dir()
    # A gate that the step before meets says nothing of what is served.
    assert run(capsys, "show", str(place), "--max-kld", "100")[0] == 1
    monkeypatch.undo()
    code, out, _ = run(capsys, *asked)
    assert code == 0 and "vllm-prefill: vLLM is not installed here" in out
    assert not (place / "weights" / "states").exists()


def test_from_python(copied, quants, demo, flags):
    place, _ = copied
    asked = {"reference": demo / "model", "file": flags[3], "protocol": "disjoint"}
    asked |= {"context_length": 256, "device": "cpu", "dtype": "bfloat16", "output": place}
    found = scoremode.ladder(quants / "W8A8", **asked, quiet=True)
    assert "comes from inputs" in found["findings"]["verdict"]
    assert [row["step"] for row in found.rows] == list(KINDS)
    assert str(found).startswith(found["findings"]["verdict"])
    with pytest.raises(GateNotMet, match="max_kld=1e-09"):
        scoremode.ladder(quants / "W8A8", **asked, max_kld=1e-9, quiet=True)


def test_wherever_it_is_killed_the_same_call_ends_alike(tmp_path):
    code, out, err = call(ladder_kill_points.main, tmp_path, POINTS)
    assert (code, out) == (0, f"{POINTS} points\n"), f"{out}\n{err}"


def test_a_run_beside_a_base_may_be_kept_and_be_a_base_itself(quants, flags, capsys, tmp_path):
    kept = tmp_path / "kept"
    asked = [*flags, "--limit", "8", "--quiet"]
    assert run(capsys, "kld", str(quants / "W8A8"), *asked, "--keep", "-o", str(kept))[0] == 0
    states = load_run(kept)[0].kept
    assert states
    other = [
        "kld",
        str(quants / "W4A16-g32"),
        "--reference",
        str(kept),
        "--device",
        "cpu",
        "--quiet",
    ]
    assert run(capsys, *other, "-o", str(tmp_path / "runs"))[0] == 0
    ((_, record),) = find_runs(tmp_path / "runs")
    assert record["reference"]["states_sha256"] == states.sha256
    code, _, err = run(
        capsys, "kld", str(quants / "W8A8"), str(quants / "W4A16-g32"), *asked, "--keep"
    )
    assert code == 2 and "--keep: takes one MODEL" in error_of(err)
    code, _, err = run(capsys, "kld", str(quants / "W8A8"), *asked[:-1], "--keep", "--engine", "vllm",
                       "--device", "cpu")  # fmt: skip
    assert code == 2


def test_attention_is_computed_by_the_backend_that_is_named(quants, flags, capsys, tmp_path):
    asked = [
        "kld",
        str(quants / "W8A8"),
        *flags,
        "--limit",
        "4",
        "--quiet",
        "--arithmetic",
        "weights",
    ]
    for way in ("sdpa", "eager"):
        assert run(capsys, *asked, "--attention", way, "-o", str(tmp_path / way))[0] == 0
        ((_, record),) = find_runs(tmp_path / way)
        assert record["engine"]["attention"] == way


@pytest.fixture(scope="module")
def gguf(demo, tmp_path_factory):
    """A GGUF file, and flags of a ladder of it beside the folder that it was made of; and an executable
    in llama-perplexity's place, which has the predictions of llama.cpp's arithmetic."""
    home = tmp_path_factory.mktemp("gguf")
    base = make_folder(home / "base", "llama", max_position_embeddings=256)
    whole = rewrite(rebuild(base, "llama", home / "whole.gguf"), home / "long.gguf", _longer)
    in_blocks(whole, home / "quant.gguf", "Q8_0")
    words = (demo / "heldout.txt").read_text()[:12_000]
    flags = [
        "--protocol",
        "llama.cpp",
        "-c",
        "64",
        "--limit",
        "16",
        "--device",
        "cpu",
        "--text",
        words,
    ]
    # The folder's own makes other tokens of a text.
    flags += ["--tokenizer", str(home / "quant.gguf")]
    served = home / "served.kld"
    asked = ["reference", str(home / "quant.gguf"), *flags, "--arithmetic", "llama.cpp", "--quiet"]
    assert main([*asked, "-o", str(home / "kept"), "--export-llama-cpp", str(served)]) == 0
    tool = home / "tool" / "llama-perplexity"
    tool.parent.mkdir()
    find = "for w; do case $was in --kl-divergence-base) out=$w;; esac; was=$w; done"
    tool.write_text(
        f'#!/bin/sh\necho "version: 9" >&2\n{find}\n[ -z "$out" ] || cp {served} "$out"\n'
    )
    tool.chmod(0o755)
    ladder = ["ladder", str(home / "quant.gguf"), "--reference", str(base), *flags]
    return ladder, tool.parent


def _longer(metadata, tensors):
    metadata["llama.context_length"] = 256


def test_a_gguf_file_ends_in_llama_cpp_s_arithmetic_and_in_llama_cpp_itself(gguf, capsys, tmp_path):
    asked, tool = gguf
    place = tmp_path / "ladder"
    code, out, err = run(capsys, *asked, "--llama-cpp", str(tool), "-o", str(place), "--json")
    assert code == 0, err
    value = json.loads(out)
    lines = {line["step"]: line for line in value["findings"]["steps"]}
    assert list(lines) == ["weights", "llama.cpp", "llama-perplexity"]
    assert {lines[name]["engine"]["dtype"] for name in ("weights", "llama.cpp")} == {"float32"}
    assert lines["llama.cpp"]["engine"]["arithmetic"] == "llama.cpp"
    reasons = {step["name"]: step["reason"] for step in value["steps"] if step["reason"]}
    assert reasons["base"].startswith("all steps compute in float32")
    assert reasons["vllm-prefill"].startswith("vLLM is given no GGUF file")
    # The file has what our own step predicts, in 16 bits each.
    noise = {
        one["name"]: one["against_before"]["kld"]["value"] for one in value["findings"]["noise"]
    }
    served = lines["llama-perplexity"]
    assert served["against_before"]["kld"]["value"] == pytest.approx(noise["file-noise"], rel=1e-6)
    assert served["judged"]["alarm"] is False and "as rounding" in served["judged"]["words"]
    assert not list(place.rglob("*.kld")) and not list(place.rglob("*.safetensors"))
    assert run(capsys, "show", str(place))[0] == 0
    code, out, _ = run(capsys, *asked, "--llama-cpp", str(tool), "-o", str(place))
    assert code == 0 and "rounding" in out and "as llama.cpp's file holds it" in out
    assert run(capsys, "report", str(place), "-o", str(tmp_path / "page.html"))[0] == 0


def test_llama_perplexity_is_left_out_with_the_reason(gguf, capsys, tmp_path, monkeypatch):
    asked, _ = gguf
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = run(capsys, *asked, "-o", str(tmp_path / "x"), "--dry-run")
    assert code == 0 and "llama-perplexity  left out: llama-perplexity: is not on PATH" in out
    other = [word if word != "llama.cpp" else "disjoint" for word in asked]
    code, out, _ = run(capsys, *other, "-o", str(tmp_path / "x"), "--dry-run")
    assert code == 0 and "left out: protocol disjoint" in out
    code, _, err = run(capsys, *asked, "-o", str(tmp_path / "x"), "--llama-cpp", str(tmp_path))
    assert code == 1 and f"{tmp_path}: has no llama-perplexity" in error_of(err)
