"""The command line as a user meets it."""

import json
import resource
import subprocess
import sys

import pytest
from support.programs import error_of, program, run
from support.waiting import HANG

from scoremode.cli import main as commands


def test_underscores_work_as_hyphens_and_leave_values_alone(base, capsys, tmp_path):
    base[-1] = "a_b c_d e_f"
    code, out, _ = run(capsys, *base, "--context_length=32", "--json")
    assert code == 0
    assert json.loads(out)["plan"]["tokens"] > 3


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


@pytest.mark.parametrize(
    ("arguments", "help_of"),
    [
        (["ppl", "m", "--protocl", "exl3"], "ppl --help"),
        (["ppl"], "ppl --help"),
        (["kld", "m"], "kld --help"),
        (["kld", "m", "--refrence", "b"], "kld --help"),
        (["kld", "m", "--reference", "b", "--stride", "x"], "kld --help all"),
        (["ppl", "m", "--text", "a", "-tp", "2"], "ppl --help all"),
        (["show", "r", "--gate-on", "x"], "show --help all"),
        (["kld", "--help", "nonsense"], "kld --help"),
        (["frobnicate"], "--help"),
    ],
)
def test_a_usage_error_points_to_the_help_that_has_its_flag(arguments, help_of, capsys):
    code, _, err = run(capsys, *arguments)
    error_of(err)
    assert code == 2 and err.splitlines()[1] == f"scoremode: see 'scoremode {help_of}'"


@pytest.mark.parametrize("command", [(), ("kld",)])
def test_help_is_instant_and_imports_nothing_heavy(command):
    program = (
        "import sys; from scoremode.cli.main import main\n"
        f"try: main([*{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'shtab'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    assert min(_seconds(program) for _ in range(3)) < 0.5


def _seconds(program: str) -> float:
    """Of processor time: a machine that is busy with other things makes nobody's program slower."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_without_a_command_the_help_is_printed_by_groups(capsys):
    for arguments in ([], ["--help"]):
        with pytest.raises(SystemExit) as ending:
            commands.parsed_command(arguments)
        out = capsys.readouterr().out
        assert not ending.value.code and all(f"\n{group}:\n" in out for group in commands.GROUPS)
        assert all(f"\n  {name} " in out for name in commands.COMMANDS)
        assert max(map(len, out.splitlines())) <= 80


def test_help_is_a_word_too(capsys):
    shown = []
    for arguments in (["help", "kld"], ["kld", "--help"], ["help"], ["--help"]):
        with pytest.raises(SystemExit):
            commands.parsed_command(arguments)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2] == shown[3]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ppl"], 2, "no model"),
        (["pll"], 2, "there is no command 'pll'; did you mean ppl?"),
        (["frobnicate"], 2, "there is no command 'frobnicate'"),
        (["--verson"], 2, "there is no flag '--verson'; did you mean --version?"),
        (["ppl", "m", "--limt", "2"], 2, "arguments: --limt 2; did you mean --limit?"),
        (["ppl", "m", "--ctx", "512"], 2, "--ctx 512; did you mean --context-length?"),
        (["ppl", "m", "--max-windows", "4"], 2, "--max-windows 4; did you mean --limit?"),
        (["kld", "m", "--n_ctx=512"], 2, "--n-ctx=512; did you mean --context-length?"),
        (
            ["kld", "{model}", "--refrence", "b"],
            2,
            "arguments: --refrence; did you mean --reference?",
        ),
        (["kld", "m", "--base", "b"], 2, "arguments: --base; did you mean --reference?"),
        (["ppl", "-m", "m"], 2, "arguments: -m; did you mean --model?"),
        (["ppl", "m", "-ngl", "99"], 2, "arguments: -ngl; not needed"),
        (["ppl", "m", "--threads", "4"], 2, "arguments: --threads 4; set OMP_NUM_THREADS=N"),
        (["ppl", "m", "-t", "4"], 2, "arguments: -t; set OMP_NUM_THREADS=N"),
        (["ppl", "m", "--qqqqq=2"], 2, "arguments: --qqqqq=2"),
        (["ppl", "m", "{file}"], 2, "arguments: {file}; give a text with -f {file}"),
        (["help", "nonesuch"], 2, "there is no command 'nonesuch'"),
        (["ppl", "/nonesuch/model", "--text", "a b"], 1, "/nonesuch/model"),
        (["ppl", "{file}", "--text", "a b"], 1, "is a text"),
        (["kld", "{file}", "--reference", "{model}"], 1, "and the text with -f {file}"),
        (["ppl", "quants/x.gguf"], 1, "quants/x.gguf: no such file"),
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
        (["ppl", "{model}", "--text", "a b", "--num-samples", "3"], 2, "with --text; it"),
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
    assert message.format(**places) in error_of(err) and out == ""
    assert {p.name for p in tmp_path.iterdir()} == {"file", "empty"}


def test_sigterm_ends_a_command_as_ctrl_c_does():
    """What it started is ended on the way out, which a default SIGTERM would not do."""
    program = """
import os, signal, sys, time
from scoremode.cli import main, measure
def run(spec, session):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        print("ended what it had started")
measure.Plan.run = run
sys.exit(main.main(["plan"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 143
    assert done.stdout == "ended what it had started\n"
    assert done.stderr == "scoremode: terminated\n"


@pytest.mark.parametrize("flag", ["MODEL", "-f", "-o"])
def test_a_name_that_is_not_utf8_is_one_line(flag, plan):
    name = b"/tmp/caf\xe9"
    arguments = ["plan", name] if flag == "MODEL" else [*plan, flag, name]
    code, _, err = program(*arguments)
    assert code == 2 and "/tmp/caf\\udce9: is not UTF-8" in error_of(err)


def test_underscores_are_hyphens_in_flags_and_stay_in_values():
    words = ["ppl", "a_model", "--context_length=a_b", "--text", "c_d", "-tp", "--max_kld"]
    assert commands._hyphens(words) == [
        *("ppl", "a_model", "--context-length=a_b", "--text", "c_d", "-tp", "--max-kld")
    ]


def test_a_model_that_is_nowhere_is_named_before_the_data_set(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    code, _, err = run(capsys, "ppl", "nosuchmodel", "-o", str(tmp_path / "runs"))
    assert code == 1 and "nosuchmodel: no such folder" in err and "wikitext" not in err
