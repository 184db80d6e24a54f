"""The command that measures a run again: read by our own parser, it asks for the same."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.card_groups import changes_of, made_run
from support.chats.runs import TEMPLATE, write_rows
from support.records import typed
from support.run_folders import scores_of, write_run

from scoremode.cli.card import joined, reproduction
from scoremode.cli.main import main, parsed_command, settle_imports
from scoremode.cli.measure import Kld, Ppl
from scoremode.cli.screen import shown
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import find_runs, read_record
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.text import audited_plan
from scoremode.runs.request import Request


@pytest.fixture(scope="module")
def place(demo, tmp_path_factory) -> Path:
    """A folder with two models and two texts, and a kept reference of one of them."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("base", "quant"):
        shutil.copytree(demo / "model", folder / name)
    text = (demo / "heldout.txt").read_text(encoding="utf-8")
    (folder / "some text.txt").write_text(text[:3000], encoding="utf-8")
    rows = "".join('{"body": "%s"}\n' % (40 * f"row {i} ") for i in range(30))
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    documents = "".join(
        json.dumps({"text": 9 * f"a {i} ", "url": f"u{i % 2}"}) + "\n" for i in range(1100)
    )
    (folder / "c4.jsonl").write_text(documents, encoding="utf-8")
    write_rows(demo, folder / "chats.jsonl")
    (folder / "many.jsonl").write_text(64 * (folder / "chats.jsonl").read_text())
    with (folder / "chats.jsonl").open("a") as file:
        file.write('{"messages": []}\n')
    (folder / "t.jinja").write_text(TEMPLATE + "{# #}{% set day = strftime_now('%d') %}")
    return folder


def request_of(argv: list[str]) -> Request:
    spec = parsed_command(argv)
    assert isinstance(spec, Ppl | Kld)
    try:
        with shown(("scoremode", *argv), hidden=True, before=0.0) as session:
            return spec.request(session)
    finally:
        settle_imports()


COMMANDS = {
    "file": "ppl quant -f 'some text.txt' --protocol disjoint -c 128 --dtype float32",
    "rows": "ppl quant --dataset-file rows.jsonl --text-field body --num-samples 20 "
    "--protocol disjoint -c 96 --limit 3 --bos never --vocabulary head",
    "text": "ppl quant --text 'a text of some words, of which there are a few' -c 16",
    "base beside": "kld quant --reference base -f 'some text.txt' --protocol disjoint -c 128 --full "
    "--batch-size 2 --json --max-kld 1 --arithmetic weights",
    "chats": "kld quant --reference base --conversations chats.jsonl --chat-template t.jinja -c 96 "
    "--num-samples 12",
    "chats by groups": "ppl quant --conversations chats.jsonl --group-by domain --score completion "
    """--long split -c 64 --chat-template t.jinja --chat-template-kwargs '{"a": 1}' """
    "--chat-date 2024-07-26 --skip-bad-rows 1 --limit 9",
    "drawn rows": "ppl quant --dataset-file rows.jsonl --text-field body --num-samples 7 "
    "--seed 3 -c 64",
    "named text": "ppl quant --preset c4-gptq --dataset-file c4.jsonl --protocol gptq -c 64 --limit 5",
    "named groups": "ppl quant --preset c4-gptq --dataset-file c4.jsonl --group-by url -c 64 "
    "--num-samples 30",
    "named chats": "ppl quant --preset smoltalk --dataset-file many.jsonl --group-by domain -c 64 "
    "--chat-template t.jinja --num-samples 9 --seed 1",
    "tokenizer": "ppl quant --tokenizer base -f 'some text.txt' --protocol strided -c 128 --stride 64",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_it_asks_for_the_same(command, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    asked = shlex.split(command)
    # As from another place: whole paths, none of which may stand in the command.
    whole = [str(place / word) if (place / word).exists() else word for word in asked]
    assert main([*whole, "-o", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    words = reproduction(typed(read_record(folder)))
    assert str(place) not in shlex.join(words) and words[0] == "scoremode"
    found, wanted = request_of(words[1:]), request_of(asked)
    assert found.protocol.resolve(512) == wanted.protocol.resolve(512)
    assert found == replace(wanted, command=found.command, gates=found.gates)


def test_the_field_of_a_text_is_known_without_a_command_line(demo, tmp_path):
    """As of a sweep's runs: their flags are in its file, and rows may have a `text` of another use."""
    words = (demo / "heldout.txt").read_text(encoding="utf-8").split()
    rows = [{"text": f"row {i}", "body": " ".join(words[9 * i : 9 * i + 9])} for i in range(60)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sweep = tmp_path / "s.toml"
    sweep.write_text(
        f'base = "{demo / "model"}"\nmodels = ["{demo / "model"}"]\noutput = "runs"\n'
        'protocols = [{protocol = "disjoint", context-length = 64}]\n'
        'texts = [{dataset-file = "rows.jsonl", text-field = "body", num-samples = 40, seed = 1}]\n'
    )
    assert main(["sweep", str(sweep)]) == 0
    for folder, _ in find_runs(tmp_path / "runs"):
        record = read_record(folder)
        assert record["command"][1] == "sweep" and record["corpus"]["text_field"] == "body"
        assert "--text-field body --num-samples 40 --seed 1" in shlex.join(
            reproduction(typed(record))
        )
        findings = Findings()
        assert audited_plan(typed(record), Sources(), findings) is not None
        assert {finding.status for finding in findings.found} == {"held"}


def test_a_kept_reference_is_named_by_its_model_and_the_text_by_its_file(
    place, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    text = ["-f", str(place / "some text.txt"), "--protocol", "disjoint", "-c", "128"]
    assert main(["reference", str(place / "base"), "-o", str(tmp_path / "ref"), *text]) == 0
    runs = str(tmp_path / "runs")
    assert (
        main(["kld", str(place / "quant"), "--reference", str(tmp_path / "ref"), "-o", runs]) == 0
    )
    (folder,) = (tmp_path / "runs").iterdir()
    words = reproduction(typed(read_record(folder)))
    assert shlex.join(words) == (
        "scoremode kld quant --reference base --protocol disjoint --context-length 128 "
        "-f 'some text.txt'"
    )
    assert main([*words[1:], "-o", str(tmp_path / "again")]) == 0
    (again,) = (tmp_path / "again").iterdir()
    one, two = read_record(folder), read_record(again)
    assert one["metrics"] == two["metrics"] and one["plan"] == two["plan"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "corpus.name": "wikitext wikitext-2-raw-v1 test",
                "corpus.source": "hub:Salesforce/w@1",
            },
            "",
        ),
        (
            {
                "corpus.name": "org/data en train",
                "corpus.source": "hub:org/data@c0",
                "corpus.rows": 5,
            },
            "--dataset org/data --dataset-config en --split train --dataset-revision c0",
        ),
        (
            {"corpus.name": "org/data test", "corpus.source": "hub:org/data@c0", "corpus.rows": 5},
            "--dataset org/data --dataset-revision c0",
        ),
        ({"corpus.source": "/home/me/-x.txt"}, "-f ./-x.txt"),
    ],
)
def test_texts_and_models_of_the_hub(changes, words, tmp_path):
    run = made_run(tmp_path / "x", 0.3, "hub:me/q@a1", **changes)
    found = shlex.join(reproduction(typed(read_record(run))))
    expected = (
        f"scoremode kld me/q --revision a1 --reference org/base --reference-revision {40 * 'b'} "
        f"--protocol disjoint --context-length 64 {words}"
    )
    assert found == f"{expected.rstrip()} --arithmetic weights --dtype bfloat16"
    parsed_command(shlex.split(found)[1:])


def test_a_command_that_is_no_run_s_gives_no_flags(tmp_path):
    """The demo's, and one of another release."""
    for i, command in enumerate(
        (["scoremode", "demo"], ["scoremode", "kld", "x", "--gone", "1"], [])
    ):
        run = made_run(tmp_path / str(i), 0.3, "models/q", command=command)
        assert reproduction(typed(read_record(run)))[:5] == [
            "scoremode",
            "kld",
            "q",
            "--reference",
            "org/base",
        ]


def test_all_that_a_protocol_s_name_says_is_a_flag_once(tmp_path):
    name = "disjoint+context-length=64+max-windows=5+bos=never"
    command = [
        "scoremode",
        "kld",
        "q",
        "--reference",
        "b",
        "--bos",
        "never",
        "--limit",
        "5",
        "-c",
        "64",
    ]
    run = made_run(tmp_path / "x", 0.3, "q", command=command, **{"protocol.name": name})
    words = shlex.join(reproduction(typed(read_record(run))))
    assert "--protocol disjoint --context-length 64 --limit 5 --bos never -f" in words
    assert all(words.count(flag) == 1 for flag in ("--bos", "--limit", "--context-length"))


def test_an_engine_is_named(tmp_path):
    changes = changes_of(
        command=["scoremode", "kld", "q", "--reference", "b", "--engine", "vllm", "-tp", "2"]
    )
    run = write_run(tmp_path / "x", scores_of(0.3), model="q", changes=changes)
    words = shlex.join(reproduction(typed(read_record(run))))
    assert words.endswith("--engine vllm --tensor-parallel-size 2")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"dtype": "float32", "arithmetic": "weights+activations"},
         "--arithmetic weights+activations --dtype float32"),
        ({"batch_windows": 3, "kv_cache_dtype": "float8_e4m3fn"},
         "--arithmetic weights --batch-size 3 --kv-cache as-declared --dtype bfloat16"),
        ({"arithmetic": "llama.cpp", "kv_cache_dtype": "float16"},
         "--arithmetic llama.cpp --dtype bfloat16"),
        ({"engine": "vllm", "tensor_parallel_size": 2, "pipeline_parallel_size": 1,
          "vllm": "1", "runner": "v1", "linear": {}, "head_dtype": "model"},
         "--engine vllm --tensor-parallel-size 2 --dtype bfloat16"),
    ],
)  # fmt: skip
def test_a_sweep_s_run_is_measured_again_by_the_same_arithmetic(engine, words, tmp_path):
    """A sweep's own command line names a file, and all flags are in that."""
    changes = {f"engine.{name}": value for name, value in engine.items()}
    command = ["scoremode", "sweep", "sweep.toml"]
    run = made_run(tmp_path / "x", 0.3, "models/q", command=command, **changes)
    found = reproduction(typed(read_record(run)))
    assert shlex.join(found).endswith(f" -f made.txt {words}")
    parsed_command(found[1:])


def test_commands_become_one_only_where_the_command_takes_several():
    same = [["scoremode", "ppl", name, "-f", "x"] for name in ("a", "b")]
    assert joined(same) == same
    other = [same[0], ["scoremode", "ppl", "b", "-f", "y"]]
    assert joined(other) == other and joined(same[:1]) == same[:1]
    several = [["scoremode", "kld", name, "--reference", "r"] for name in ("a", "b")]
    one = ["scoremode", "kld", "a", "b", "--reference", "r"]
    try:
        parsed_command(one[1:])
    except Exception:  # noqa: BLE001
        assert joined(several) == several
    else:
        assert joined(several) == [one]
