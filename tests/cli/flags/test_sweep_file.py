"""A sweep's file as command lines."""

import pytest

from scoremode.cli.flags.sweep_file import command_lines, read_sweep_file
from scoremode.cli.main import command_parser
from scoremode.errors import UsageError
from scoremode.runs.sweep.models import all_models


@pytest.fixture(scope="module")
def kld():
    return command_parser("kld")


def test_a_line_for_each_text_under_each_protocol_with_paths_from_the_file(kld, tmp_path):
    (tmp_path / "base").mkdir()
    file = tmp_path / "s.toml"
    file.write_text("""
base = "base"
models = ["org/quant", "*.gguf", "org/repo:*.gguf", "./q"]
texts = ["wiki.txt", {dataset = "wikitext", num-samples = 10, seed = 3}, {preset = "c4-gptq"}]

[flags]
device = "cpu"
tokenizer = "org/tokenizer"
max-kld = 0.05
full = true
trust_remote_code = false
enforce-eager = false
engine-arg = ["a=1", "b=2"]

[[protocols]]
protocol = "disjoint"
context-length = "2k"

[[protocols]]
limit = 5
""")
    lines = read_sweep_file(file, kld)
    common = [
        "kld", "org/quant", f"{tmp_path}/*.gguf", "org/repo:*.gguf", f"{tmp_path}/q",
        f"--reference={tmp_path}/base", f"--output-path={tmp_path}/s", "--device=cpu",
        "--tokenizer=org/tokenizer", "--max-kld=0.05", "--full", "--no-enforce-eager",
        "--engine-arg=a=1", "--engine-arg=b=2",
    ]  # fmt: skip
    texts = [
        [f"--file={tmp_path}/wiki.txt"],
        ["--dataset=wikitext", "--num-samples=10", "--seed=3"],
        ["--preset=c4-gptq"],
    ]
    protocols = [["--protocol=disjoint", "--context-length=2k"], ["--limit=5"]]
    assert lines == [[*common, *text, *p] for text in texts for p in protocols]
    parsed = kld.parse_args(lines[0][1:])
    assert parsed.context_length == 2048 and parsed.further_models == tuple(common[2:5])


def test_conversations_are_a_text(kld, tmp_path):
    (tmp_path / "chats.jsonl").write_text("")
    file = tmp_path / "s.toml"
    file.write_text("""
base = "base"
models = ["q"]
protocols = [{protocol = "chat", score = "completion", long = "split"}, {context_length = "8k"}]

[[texts]]
conversations = "chats.jsonl"
group-by = "domain"
chat-template = "t.jinja"
chat-template-kwargs = {enable_thinking = false}
chat-date = 2025-02-03
skip-bad-rows = 2

[[texts]]
conversations = "org/chats"
""")
    lines = read_sweep_file(file, kld)
    first = [
        f"--conversations={tmp_path}/chats.jsonl", "--group-by=domain",
        f"--chat-template={tmp_path}/t.jinja",
        '--chat-template-kwargs={"enable_thinking": false}', "--chat-date=2025-02-03",
        "--skip-bad-rows=2",
    ]  # fmt: skip
    protocols = [["--protocol=chat", "--score=completion", "--long=split"], ["--context-length=8k"]]
    texts = [first, ["--conversations=org/chats"]]
    common = ["kld", "q", "--reference=base", f"--output-path={tmp_path}/s"]
    assert lines == [[*common, *text, *p] for text in texts for p in protocols]
    parsed = kld.parse_args(lines[0][1:])
    assert parsed.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "q"}, "has model, which is none of base, models"),
        ({"models": []}, "has no models"),
        ({"models": [1]}, "has no models"),
        ({"models": ["--json"]}, "'--json', which is no model's name"),
        ({"base": ""}, "''"),
        ({"base": ["a", "b"]}, "a is no kept reference"),
        ({"base": ["a", "b"], "texts": ["x"]}, "several bases"),
        ({"flags": {"reference": "x"}}, "its flags have reference"),
        ({"flags": {"output-path": "x"}}, "its flags have output-path"),
        ({"flags": {"resume": True}}, "its flags have resume"),
        ({"flags": {"devise": "cpu"}}, "its flags have devise"),
        ({"flags": {"file": "x"}, "texts": ["y"]}, "its flags have file"),
        ({"flags": {"limit": 1}, "protocols": ["gptq"]}, "its flags have limit"),
        ({"flags": {"device": {"a": 1}}}, "its flags have device = "),
        ({"flags": 3}, "its flags are no table"),
        ({"texts": [{"protocol": "gptq"}]}, "its texts have protocol"),
        ({"protocols": [{"dtype": "float32"}]}, "its protocols have dtype"),
        ({"texts": 3}, "its texts are no list"),
    ],
)
def test_what_is_no_part_of_a_sweep_is_refused_by_its_name(change, words, kld):
    with pytest.raises(UsageError, match=words):
        command_lines({"base": "b", "models": ["q"], **change}, kld)


@pytest.mark.parametrize("data", [b"base = ", b"\xff", b"[a]\n[a]\n"])
def test_what_is_no_toml_is_refused_with_the_files_name(data, kld, tmp_path):
    (tmp_path / "s.toml").write_bytes(data)
    with pytest.raises(UsageError, match=r"s.toml: is not TOML: "):
        read_sweep_file(tmp_path / "s.toml", kld)


def test_a_file_that_is_not_there_is_refused(kld, tmp_path):
    with pytest.raises(UsageError, match="not readable"):
        read_sweep_file(tmp_path / "none.toml", kld)


def test_several_kept_references_make_a_line_each(kld, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text("{}")
    lines = command_lines({"base": ["a", "b"], "models": "q"}, kld, tmp_path)
    assert [line[2] for line in lines] == [f"--reference={tmp_path}/{n}" for n in ("a", "b")]


def test_brackets_in_the_folders_name_are_no_pattern(kld, tmp_path):
    folder = tmp_path / "a[1]"
    for name in ("q/one", "q[2]"):
        (folder / name).mkdir(parents=True)
    file = folder / "s.toml"
    file.write_text('base = "b"\nmodels = ["q/*", "q[2]"]')
    (line,) = read_sweep_file(file, kld)
    assert all_models(line[1:3]) == [f"{folder}/q/one", f"{folder}/q[2]"]
