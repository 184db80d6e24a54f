"""A sweep's file as command lines."""

import re
from pathlib import Path

import pytest

from scoremode.cli import sweep
from scoremode.cli.measure import Kld
from scoremode.cli.sweep import definitions
from scoremode.errors import UsageError
from scoremode.runs.sweep.sweep import all_models


def read_sweep_file(file: Path, *more, **named) -> list[Kld]:
    return [Kld.of(**given) for given in sweep.read_sweep_file(file, *more, **named)]


def test_a_line_for_each_text_under_each_protocol_with_paths_from_the_file(tmp_path):
    (tmp_path / "base").mkdir()
    file = tmp_path / "s.toml"
    file.write_text("""
base = "base"
models = ["org/quant", "*.gguf", "org/repo:*.gguf", "./q"]
texts = ["wiki.txt", {dataset = "wikitext", num-samples = 10, seed = 3}, {preset = "c4-gptq"}]

[flags]
device = "cpu"
tokenizer = "org/tokenizer"
kv-scales = "scales.safetensors"
max-kld = 0.05
full = true
enforce-eager = false
keep-dense = ["lm_head", "layers.0"]

[[protocols]]
protocol = "disjoint"
context-length = "2k"

[[protocols]]
limit = 5
""")
    lines = read_sweep_file(file)
    common = [
        "kld", "org/quant", f"{tmp_path}/*.gguf", "org/repo:*.gguf", f"{tmp_path}/q",
        f"--reference={tmp_path}/base", f"--output-path={tmp_path}/s", "--device=cpu",
        "--tokenizer=org/tokenizer", f"--kv-scales={tmp_path}/scales.safetensors", "--max-kld=0.05",
        "--full", "--no-enforce-eager",
        "--keep-dense=lm_head", "--keep-dense=layers.0",
    ]  # fmt: skip
    texts = [
        [f"--file={tmp_path}/wiki.txt"],
        ["--dataset=wikitext", "--num-samples=10", "--seed=3"],
        ["--preset=c4-gptq"],
    ]
    protocols = [["--protocol=disjoint", "--context-length=2k"], ["--limit=5"]]
    assert [line.words() for line in lines] == [
        [*common, *text, *p] for text in texts for p in protocols
    ]
    parsed = lines[0]
    assert parsed.context_length == 2048 and parsed.further_models == tuple(common[2:5])


def test_models_may_have_labels(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('base = "b"\nmodels = ["org/a", {model = "org/b", label = "ours"}]')
    (line,) = read_sweep_file(file)
    assert line.label == [None, "ours"] and line.further_models == ("org/b",)
    file.write_text('base = "b"\nmodels = {model = "org/b", label = "ours"}')
    assert read_sweep_file(file)[0].label == ["ours"]
    for models, reason in {
        '{model = "a", lable = "x"}': "its models have lable, which is neither model nor label",
        '{model = "a", label = 3}': "its models have label = 3, which is no text",
        '{label = "x"}': "has no models: ",
        '{model = "a", label = ""}': "label: '' is empty",
    }.items():
        file.write_text(f'base = "b"\nmodels = [{models}]')
        with pytest.raises(UsageError, match=re.escape(reason)):
            read_sweep_file(file)
    file.write_text('base = "b"\nmodels = ["a"]\nflags.label = "x"')
    with pytest.raises(UsageError, match="have label, which isn't a flag of a sweep's flags"):
        read_sweep_file(file)


def test_conversations_are_a_text(tmp_path):
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
    lines = read_sweep_file(file)
    first = [
        f"--conversations={tmp_path}/chats.jsonl", "--group-by=domain",
        f"--chat-template={tmp_path}/t.jinja",
        '--chat-template-kwargs={"enable_thinking": false}', "--chat-date=2025-02-03",
        "--skip-bad-rows=2",
    ]  # fmt: skip
    protocols = [["--protocol=chat", "--score=completion", "--long=split"], ["--context-length=8k"]]
    texts = [first, ["--conversations=org/chats"]]
    common = ["kld", "q", "--reference=base", f"--output-path={tmp_path}/s"]
    assert [line.words() for line in lines] == [
        [*common, *text, *p] for text in texts for p in protocols
    ]
    parsed = lines[0]
    assert parsed.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "q"}, "has model, which is none of base, models"),
        ({"models": []}, "has no models"),
        ({"models": [1]}, "has no models"),
        ({"models": ["--json"]}, "'--json', which isn't a model's name"),
        ({"base": ""}, "''"),
        ({"base": ["a", "b"]}, "a isn't a kept reference"),
        ({"base": ["a", "b"], "texts": ["x"]}, "several bases"),
        ({"flags": {"reference": "x"}}, "its flags have reference"),
        ({"flags": {"output-path": "x"}}, "its flags have output-path"),
        ({"flags": {"resume": True}}, "its flags have resume"),
        ({"flags": {"devise": "cpu"}}, "its flags have devise"),
        ({"flags": {"file": "x"}, "texts": ["y"]}, "its flags have file"),
        ({"flags": {"limit": 1}, "protocols": ["gptq"]}, "its flags have limit"),
        ({"flags": {"device": {"a": 1}}}, "its flags have device = "),
        ({"flags": 3}, "its flags aren't a table"),
        ({"texts": [{"protocol": "gptq"}]}, "its texts have protocol"),
        ({"protocols": [{"dtype": "float32"}]}, "its protocols have dtype"),
        ({"texts": 3}, "its texts aren't a list"),
    ],
)
def test_what_is_no_part_of_a_sweep_is_refused_by_its_name(change, words):
    with pytest.raises(UsageError, match=words):
        definitions({"base": "b", "models": ["q"], **change})


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("trust-remote-code = true", "--trust-remote-code"),
        ("trust_remote_code = false", "--trust-remote-code"),
        ('engine-arg = ["worker_cls=evil.Worker"]', "--engine-arg KEY=VALUE"),
    ],
)
@pytest.mark.parametrize("section", ["[flags]", "[[texts]]", "[[protocols]]"])
def test_consent_to_code_comes_from_the_command_line_alone(section, key, way, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(f'base = "b"\nmodels = "q"\n{section}\n{key}\n')
    with pytest.raises(UsageError, match=f"command line alone: scoremode sweep FILE {way}$"):
        read_sweep_file(file)


def test_consent_that_is_given_holds_for_every_line(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('base = "b"\nmodels = "q"\nprotocols = ["disjoint", "gptq"]\n')
    parsed = read_sweep_file(file, {"trust_remote_code": True, "engine_arg": ["a=1"]})
    assert [(p.trust_remote_code, p.engine_arg) for p in parsed] == [(True, ["a=1"])] * 2
    # A program's own keywords are its consent.
    (given,) = definitions({"base": "b", "models": "q", "flags": {"trust_remote_code": True}})
    assert Kld.of(**given).trust_remote_code


@pytest.mark.parametrize("name", ["./--trust-remote-code", "./-v*", "./--engine-arg=a=[b]"])
def test_a_models_path_is_no_flag(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("s.toml")
    file.write_text(f'base = "b"\nmodels = "{name}"\n')
    (line,) = read_sweep_file(file)
    assert line.model == name and not line.trust_remote_code and not line.engine_arg


@pytest.mark.parametrize(
    "name", ["/tmp/x", "../x", "a/../../x", "link", "link/x", "ring", "a\\u0000"]
)
def test_a_file_writes_into_its_own_folder_alone(name, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "mine")
    (folder / "ring").symlink_to(folder / ".." / "ring")
    file = folder / "s.toml"
    file.write_text(f'base = "b"\nmodels = "q"\noutput = "{name}"\n')
    with pytest.raises(UsageError, match=r"s.toml: its output .*(give -o|no folder's name)"):
        read_sweep_file(file)
    (line,) = read_sweep_file(file, output=tmp_path / "mine")
    assert line.output == tmp_path / "mine"
    # One whose name without its ending leads out of it.
    (folder / "...toml").write_text('base = "b"\nmodels = "q"\n')
    with pytest.raises(UsageError, match=r"its output '\.\.' is not inside"):
        read_sweep_file(folder / "...toml")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"base = ", "is not TOML: "),
        (b"\xff", "is not TOML: "),
        (b"[a]\n[a]\n", "is not TOML: "),
        (b"x = " + b"[" * 100_000, "is not TOML: "),
        (b"x = " + b"9" * 5000, "is not TOML: "),
        # Each of these would take gigabytes, or a traceback to tell.
        (
            b"a=1\n" + b".".join([b"a"] * 20_000) + b" = 1",
            ", line 2: its key has more than 32 parts",
        ),
        (b'[ "x.y" ' + b" . 'a.b'" * 9_000 + b"]", ", line 1: its key has more than 32 parts"),
        (
            b"flags = {b = 1, a" + b".a" * 20_000 + b" = 1}",
            ", line 1: its key has more than 32 parts",
        ),
        (b"flags.a = " + b"{a=" * 300 + b"1" + b"}" * 300, ": "),
        (b"#" * ((1 << 17) + 1), "more than 131,072 bytes"),
        (b'base = "b"\nmodels = "q"\nflags.seed = 0x' + b"f" * 5000, ": Exceeds the limit"),
        (b'base = "b"\nmodels = "a\\u0000"', "isn't a model's name"),
        (b'base = "b"\nmodels = "q"\nflags.device = "a\\u0000"', "which no flag takes"),
    ],
)
def test_what_is_no_toml_or_too_much_is_one_line_with_the_files_name(data, words, tmp_path):
    (tmp_path / "s.toml").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_sweep_file(tmp_path / "s.toml")
    assert str(caught.value).startswith(f"{tmp_path}/s.toml") and words in str(caught.value)


def test_dots_elsewhere_than_in_a_key_are_taken(tmp_path):
    file = tmp_path / "s.toml"
    models = ", ".join(f'"m.{i}.gguf"' for i in range(99))
    file.write_text(f'# {"a." * 99}\nbase = "b"\nmodels = [{models}]\nflags.seed = 1\n')
    assert len(read_sweep_file(file)[0].further_models) == 98


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not readable"):
        read_sweep_file(tmp_path / "none.toml")


def test_several_kept_references_make_a_line_each(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text("{}")
    lines = definitions({"base": ["a", "b"], "models": "q"}, tmp_path)
    assert [line["reference"] for line in lines] == [f"{tmp_path}/{n}" for n in ("a", "b")]


def test_brackets_in_the_folders_name_are_no_pattern(tmp_path):
    folder = tmp_path / "a[1]"
    for name in ("q/one", "q[2]"):
        (folder / name).mkdir(parents=True)
    file = folder / "s.toml"
    file.write_text('base = "b"\nmodels = ["q/*", "q[2]"]')
    (line,) = read_sweep_file(file)
    assert all_models((line.model or "", *line.further_models)) == [
        f"{folder}/q/one",
        f"{folder}/q[2]",
    ]
