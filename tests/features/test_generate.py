"""`scoremode generate` as a user meets it, and its file as a text of the other commands."""

import json

import pytest
from support.programs import run

from scoremode.cli.main import parsed_command

TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture
def asked(demo, tmp_path) -> list[str]:
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    (tmp_path / "p.txt").write_text("The same value\nis computed once\n")
    model = [
        "generate",
        str(demo / "model"),
        "--prompts",
        str(tmp_path / "p.txt"),
        "--device",
        "cpu",
    ]
    return [*model, "--chat-template", str(tmp_path / "t.jinja"), "--max-new-tokens", "12"]


def test_its_file_is_a_text_and_the_runs_record_names_the_base(asked, demo, capsys, tmp_path):
    chats = str(tmp_path / "c.jsonl")
    code, out, err = run(capsys, *asked, "-o", chats, "--samples-per-prompt", "2")
    assert (code, err) == (0, "") and out.startswith("file      c.jsonl, sha256 ")
    assert "\nreplies   4, " in out and "\nby        transformers " in out
    code, again, err = run(capsys, *asked, "-o", chats, "--samples-per-prompt", "2")
    assert (code, again) == (0, out) and "is there already, as this command writes it" in err
    ppl = ["ppl", str(demo / "model"), "--conversations", chats, "--device", "cpu", "-c", "256"]
    template = ["--chat-template", str(tmp_path / "t.jinja")]
    code, out, err = run(capsys, *ppl, *template, "-o", str(tmp_path / "runs"), "--json")
    assert code == 0, err
    scored, record = json.loads(out), json.loads((tmp_path / "c.jsonl.json").read_text())
    assert scored["corpus"]["generated"]["base"] == record["base"]
    assert scored["checkpoint"]["fingerprint"] == record["base"]["fingerprint"]
    assert scored["plan"]["scored"] == record["counts"]["tokens"]


def test_json_is_the_record(asked, capsys, tmp_path):
    code, out, _ = run(
        capsys, *asked, "-o", str(tmp_path / "c.jsonl"), "--json", "--num-samples", "1"
    )
    assert code == 0
    record = json.loads((tmp_path / "c.jsonl.json").read_text())
    assert json.loads(out) == record and record["counts"]["replies"] == 1
    assert record["command"][:2] == ["scoremode", "generate"]


def test_the_system_speaks_first_and_temperature_0_is_greedy(asked, capsys, tmp_path):
    flags = ["--system", "Be brief.", "--temperature", "0", "--samples-per-prompt", "2"]
    code, _, err = run(capsys, *asked, "-o", str(tmp_path / "c.jsonl"), *flags)
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert all(row["messages"][0] == {"role": "system", "content": "Be brief."} for row in rows)
    assert rows[0]["messages"] == rows[1]["messages"] != rows[2]["messages"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["-o", "c.txt"], 2, "-o c.txt: the output is JSON Lines: name it .jsonl"),
        ([], 2, "no file to write to: give -o chats.jsonl"),
        (["-o", "c.jsonl", "--temperature", "-1"], 2, "--temperature -1.0: must be at least 0"),
        (["-o", "c.jsonl", "--seed", "-1"], 2, "--seed -1: must be at least 0"),
        (["-o", "c.jsonl", "--batch-size", "0"], 2, "--batch-size 0: must be at least 1"),
        (["-o", "c.jsonl", "-tp", "2"], 2, "--tensor-parallel-size: is for --engine vllm"),
        (["-o", "c.jsonl", "--engine", "vllm"], 2, "--device: is for --engine torch"),
    ],
)
def test_what_it_does_not_take(asked, capsys, flags, code, words):
    found, out, err = run(capsys, *asked, *flags)
    assert (found, out) == (code, "") and words in err


def test_without_prompts_or_a_model_it_says_so(demo, capsys):
    code, _, err = run(capsys, "generate", str(demo / "model"), "-o", "c.jsonl")
    assert code == 2 and "no prompts: give --prompts FILE" in err
    code, _, err = run(capsys, "generate", "--prompts", "p.txt", "-o", "c.jsonl")
    assert code == 2 and "no model: give a folder" in err


def test_the_defaults_are_the_models_own_distribution():
    args = parsed_command(["generate", "m", "--prompts", "p", "-o", "c.jsonl"])
    assert (args.temperature, args.top_p, args.top_k, args.seed) == (1.0, 1.0, 0, 0)
    assert (args.engine, args.max_new_tokens, args.samples_per_prompt) == ("torch", 512, 1)
