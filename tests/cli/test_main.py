"""The command line as a user meets it."""

import json
import re
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scoremode.cli.main import main
from scoremode.results.folders.store import find_runs


@pytest.fixture
def base(demo, tmp_path) -> list[str]:
    """A quick run's arguments."""
    text = "--text", "The same value is computed once and the result is used again. " * 20
    model = "ppl", str(demo / "model"), "--device", "cpu", "-o", str(tmp_path / "runs")
    return [*model, *text]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_ppl_prints_what_a_reader_needs(base, capsys):
    code, out, err = run(capsys, *base, "-c", "32", "--protocol", "disjoint")
    assert code == 0 and err == ""
    for word in (
        "PPL",
        "an interval needs",
        "disjoint+context-length=32",
        "tokens in",
        "bits/weight",
    ):
        assert word in out
    details = ("weights (bf16)", "bits per weight", "peak memory", "tokens/s", "softmax over")
    assert "record.json" in out and not any(words in out for words in details)
    # The number comes first, what it is of next, and the rest only where it is asked for.
    assert out.startswith("PPL ") and out.splitlines()[1].startswith("model ")
    folder = next(line for line in out.splitlines() if line.startswith("more ")).split()[3]
    code, again, err = run(capsys, "show", folder)
    assert (code, err) == (0, "") and again == out
    code, long, _ = run(capsys, "show", folder, "-v")
    assert code == 0 and all(words in long for words in details)


def test_json_is_the_record(base, capsys, tmp_path):
    code, out, _ = run(capsys, *base, "-c", "32", "--json")
    ((_, record),) = find_runs(tmp_path / "runs")
    assert code == 0 and json.loads(out) == record


def test_underscores_work_as_hyphens_and_leave_values_alone(base, capsys, tmp_path):
    base[-1] = "a_b c_d e_f"
    code, out, _ = run(capsys, *base, "--context_length=32", "--json")
    assert code == 0
    assert json.loads(out)["plan"]["tokens"] > 3


def test_the_seeds_command_line_runs(demo, data, capsys, tmp_path):
    """The seeds' flags; the model is ours, and its windows shorter."""
    code, out, _ = run(
        capsys,
        "ppl",
        *("--model", str(demo / "model"), "--dataset", "wikitext"),
        *("--dataset-config", "wikitext-2-raw-v1", "--num-samples", "30"),
        *("--dataset-file", str(data / "wikitext2" / "wiki.test.raw")),
        *("--context-length", "256", "--stride", "64", "--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", "0.80", "--trust-remote-code"),
        *("--disable-custom-all-reduce", "-o", str(tmp_path), "--json"),
    )
    record = json.loads(out)
    assert code == 0
    assert record["corpus"]["row_limit"] == 30
    assert record["protocol"]["name"] == "score-mode+context-length=256+stride=64"


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


@pytest.mark.parametrize("package", ["text", "results", "report"])
def test_texts_results_and_reports_never_load_torch(package):
    program = f"""
import pkgutil, importlib, sys
import scoremode.{package} as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
sys.exit("torch" in sys.modules or "transformers" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("command", [(), ("ppl",), ("plan",), ("inspect",), ("demo",)])
def test_help_is_instant_and_imports_nothing_heavy(command):
    program = (
        "import sys; from scoremode.cli.main import main\n"
        f"try: main([*{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    assert min(_seconds(program) for _ in range(3)) < 0.5


def _seconds(program: str) -> float:
    """Of processor time: a machine that is busy with other things makes nobody's program slower."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ppl"], 2, "no model"),
        (["ppl", "/nonesuch/model", "--text", "a b"], 1, "/nonesuch/model"),
        (["ppl", "{file}", "--text", "a b"], 1, "is a file"),
        (["ppl", "{empty}", "--text", "a b"], 1, "config.json"),
        (["ppl", "{model}", "-f", "/nonesuch.txt"], 1, "/nonesuch.txt"),
        (["ppl", "{model}", "--dataset-file", "/nonesuch.jsonl"], 1, "/nonesuch.jsonl"),
        (["ppl", "{model}", "--text", "", "-c", "64"], 1, "at least 2"),
        (["ppl", "{model}", "--text", "", "-c", "64", "--bos", "never"], 1, "at least 2"),
        (["ppl", "{model}", "--text", "a b"], 2, "exceeds the model's 512 positions"),
        (["ppl", "{model}", "--text", "a b", "-c", "513"], 2, "513 exceeds the model's 512"),
        (["ppl", "{model}", "--text", "a b", "-c", "1"], 2, "context length 1"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--stride", "0"], 2, "stride 0"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--limit", "0"], 2, "limit of 0"),
        (["ppl", "{model}", "--text", "a b", "--protocol", "wiki2"], 2, "'wiki2'"),
        (["ppl", "{model}", "--text", "a", "-f", "b"], 2, "several texts"),
        (["ppl", "{model}", "--text", "a", "--text", "b"], 2, "--text: is given twice"),
        (["ppl", "{model}", "-f", "-", "-f", "-"], 2, "-f - is given twice"),
        (["ppl", "{model}", "--model", "other", "--text", "a"], 2, "two models"),
        (["ppl", "{model}", "--text", "a b", "-tp", "2"], 2, "--engine vllm"),
        (["ppl", "{model}", "--text", "a b", "--pipeline_parallel_size", "2"], 2, "--engine vllm"),
        (["ppl", "{model}", "--text", "a b", "--max-num-batched-tokens", "9"], 2, "--batch-size"),
        (["ppl", "{model}", "--text", "a b", "--batch-size", "0"], 2, "--batch-size 0"),
        (["ppl", "{model}", "--text", "a b", "--gpu-memory-utilization", "7"], 2, "utilization 7"),
        (["ppl", "{model}", "--text", "a b", "--max-memory", "lots"], 2, "'lots'"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--max-memory", "10"], 1, "-memory by"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--quantization", "awq"], 2, "awq"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--device", "tpu7"], 2, "tpu7"),
        (["ppl", "{model}", "--text", "a b", "--num-samples", "3"], 2, "has no rows"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "-o", "{file}"], 1, "{file}"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "-o", "{file}/runs"], 1, "{file}"),
        (["ppl", "{model}", "--text", "a b", "-c", "64", "--tokenizer", "/none"], 1, "/none"),
        (["plan", "--text", "a b"], 1, "--tokenizer"),
        (["inspect", "/nonesuch"], 1, "/nonesuch"),
        (["ppl", "{model}", "--engine", "abacus"], 2, "abacus"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, code, message, demo, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    places = {"model": demo / "model", "file": tmp_path / "file", "empty": tmp_path / "empty"}
    got, out, err = run(capsys, *(a.format(**places) for a in arguments))
    assert got == code
    lines = [line for line in err.splitlines() if "error" in line]
    assert len(lines) == 1 and message.format(**places) in lines[0]
    assert "Traceback" not in err and out == ""
    assert {p.name for p in tmp_path.iterdir()} == {"file", "empty"}


def test_inspect_shows_formats_and_bits(demo, capsys, tmp_path):
    from scoremode.demo.quantize import VARIANTS, quantize_folder

    quantize_folder(demo / "model", tmp_path / "w4", VARIANTS[1])
    code, out, _ = run(capsys, "inspect", str(tmp_path / "w4"), "--json")
    value = json.loads(out)
    assert code == 0
    assert value["formats"]["W4A16 g32"]["modules"] == 21
    # 4 bits and one 16-bit scale for 32 of them.
    assert value["bits_per_weight"]["body"] == 4.5
    assert value["refusals"] == [] and value["arithmetic"] == "weights"
    code, out, _ = run(capsys, "inspect", str(tmp_path / "w4"))
    assert code == 0 and "W4A16 g32" in out and "4.500 body" in out


def test_inspect_says_what_would_be_refused(data, capsys, tmp_path):
    import torch
    from safetensors.torch import save_file

    source = data / "configs" / "other-quant" / "Qwen--Qwen3-32B-FP8_config.json"
    (tmp_path / "config.json").write_bytes(source.read_bytes())
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    code, out, _ = run(capsys, "inspect", str(tmp_path))
    assert code == 1 and "refused" in out and "fp8" in out


def test_demo_shows_an_order_from_4_bits_down(capsys, tmp_path):
    code, out, err = run(capsys, "demo", "--json", "-o", str(tmp_path / "demo"))
    # Without a terminal it says nothing, nor does a library: transformers has bars of its own.
    assert code == 0 and err == ""
    records = json.loads(out)
    ppl = {name: r["metrics"]["ppl"] for name, r in records.items()}
    assert ppl["dense"]["value"] < ppl["W4A16-g32"]["value"] < ppl["W4A16-channel"]["value"]
    assert abs(ppl["W8A16"]["value"] / ppl["dense"]["value"] - 1) < 0.002
    assert all(m["ci95"][0] < m["value"] < m["ci95"][1] for m in ppl.values())
    assert len({r["plan"]["sha256"] for r in records.values()}) == 1
    code, _, err = run(capsys, "demo", "-o", str(tmp_path / "demo"))
    assert code == 2 and "is there already" in err


def test_the_module_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "scoremode", "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("scoremode ")


def test_package_keeps_its_promises_about_files(demo):
    size = sum(f.stat().st_size for f in Path(demo).rglob("*") if f.is_file())
    assert size <= 3_000_000
    import scoremode

    assert (Path(scoremode.__file__).parent / "py.typed").exists()


def test_sigterm_ends_a_command_as_ctrl_c_does():
    """What it started is ended on the way out, which a default SIGTERM would not do."""
    program = """
import os, signal, sys, time
from scoremode.cli import main, plan
def run(args, command):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        print("ended what it had started")
plan.run = run
sys.exit(main.main(["plan"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 143
    assert done.stdout == "ended what it had started\n"
    assert done.stderr == "scoremode: terminated\n"


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


def test_too_little_memory_says_what_would_do(base, capsys):
    arguments = [*base, "-c", "64", "--protocol", "disjoint", "--quiet"]
    code, _, err = run(capsys, *arguments, "--max-memory", "1MiB")
    assert code == 1 and "windows of 64 tokens take" in err and "lower" not in err
    found = re.search(r"raise --max-memory by (\d+) MiB, or give --batch-size (\d+)\n$", err)
    assert found
    assert run(capsys, *arguments, "--max-memory", f"{1 + int(found[1])}MiB")[0] == 0
    assert run(capsys, *arguments, "--max-memory", "1MiB", "--batch-size", found[2])[0] == 0


def test_a_gates_bound_without_a_gate_is_refused(demo, capsys):
    code, out, err = run(
        capsys, "kld", str(demo / "model"), "--reference", "no/base", "--gate-on", "upper"
    )
    assert (code, out) == (2, "") and err.startswith(
        "scoremode: error: --gate-on upper: there is no"
    )
