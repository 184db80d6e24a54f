"""`import scoremode`: which names it has, what importing it costs, and what each of them does."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

import scoremode
from scoremode import api, errors
from scoremode.cli import main as commands
from scoremode.cli.generate import Generate
from scoremode.cli.measure import Kld, Ppl, Reference
from scoremode.spec.run import Gates

PLACES = overlapping(9000, CONTEXT, 64)
# Of a command line alone: what is printed, and how many processes there are.
_NOT_KEYWORDS = {
    "margin",
    *("list_presets", "model", "model_flag", "form", "verbose", "quiet", "devices", "dry_run"),
    *("llama_cpp_block", "further_models", "export_llama_cpp", "export_nats", "junit"),
    *("push", "license", "yes"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "one", made(**PLACES, noise=0.4))


def in_a_new_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_are_these_and_each_is_there():
    functions = [
        *("Attribution", "Findings", "Run", "Sweep", "attribute", "card", "check", "compare"),
        *("generate", "inspect", "kld", "ladder", "measure", "merge", "open_run", "plan", "status"),
        *("sweep", "tasks", "verify", "write_report"),
    ]
    exceptions = [
        *("CheckpointError", "CorpusError", "EngineError", "GateNotMet", "InvalidMeasurement"),
        *("ProtocolError", "ReferenceUnusable", "RunFolderError", "ScoremodeError"),
        *("TokenizerError", "UnsupportedFormat", "UnsupportedModel", "UsageError"),
    ]
    assert sorted(scoremode.__all__) == sorted([*functions, *exceptions])
    assert exceptions == [name for name in errors.__all__ if name[0].isupper()]
    for name in scoremode.__all__:
        owner = api if name in functions else errors
        assert getattr(scoremode, name) is getattr(owner, name)
    assert set(scoremode.__all__) <= set(dir(scoremode))
    with pytest.raises(AttributeError, match="module 'scoremode' has no attribute 'measured'"):
        scoremode.measured  # noqa: B018  # pyright: ignore


def test_importing_it_imports_nothing_and_its_functions_nothing_heavy():
    program = """
import sys
before = set(sys.modules)
import scoremode
print(sorted(set(sys.modules) - before))
scoremode.GateNotMet
print(sorted(m for m in set(sys.modules) - before if m.startswith("scoremode")))
scoremode.measure, scoremode.open_run, scoremode.compare, scoremode.write_report, scoremode.Run
print(sorted({"torch", "numpy", "pyarrow", "transformers", "vllm"} & set(sys.modules)))
"""
    assert in_a_new_process(program).splitlines() == [
        "['scoremode']",
        "['scoremode', 'scoremode.errors']",
        "[]",
    ]


def test_every_flag_of_a_run_is_a_keyword_and_every_keyword_a_flag():
    flags = {name for command in (Ppl, Kld, Reference) for name in command.flags}
    keywords = set(inspect.signature(api.measure).parameters) - {"model", "quiet"}
    assert keywords == flags - _NOT_KEYWORDS
    swept = set(inspect.signature(api.sweep).parameters) - {"base", "models", "texts", "protocols"}
    # A sweep's models have theirs beside them.
    assert swept == keywords - {"reference", "label", "keep"} | {"quiet"}
    gates = set(inspect.signature(api.Run.require).parameters) - {"self"}
    assert gates == set(Gates.flags) <= keywords


def test_every_flag_of_generate_is_a_keyword_and_every_keyword_a_flag():
    keywords = set(inspect.signature(api.generate).parameters) - {"base", "quiet"}
    assert keywords == set(Generate.flags) - {"model", "model_flag", "form", "quiet"}


def test_generated_conversations_are_the_command_lines(demo, tmp_path, capsys):
    (tmp_path / "t.jinja").write_text(
        "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}{{ who or '' }}"
    )
    (tmp_path / "p.txt").write_text("The same value\n")
    record = scoremode.generate(
        demo / "model",
        tmp_path / "p.txt",
        tmp_path / "a.jsonl",
        max_new_tokens=4,
        chat_template=tmp_path / "t.jinja",
        chat_template_kwargs={"who": "it: "},
        device="cpu",
        quiet=True,
    )
    assert capsys.readouterr() == ("", "") and record["counts"]["replies"] == 1
    assert record["template"]["arguments"] == {"who": "it: "}
    again = [word.replace("a.jsonl", "b.jsonl") for word in record["command"][1:]]
    assert commands.main(again) == 0
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    with pytest.raises(TypeError, match="unexpected keyword argument 'top'"):
        scoremode.generate(demo / "model", "p", "o.jsonl", top=3)  # pyright: ignore
    with pytest.raises(scoremode.UsageError, match=r"^top_p=2\.0: must be above 0"):
        scoremode.generate(demo / "model", tmp_path / "p.txt", "o.jsonl", top_p=2, quiet=True)


def test_keywords_become_the_flags_that_a_user_would_type():
    spec = Kld.of(
        model="-m", reference="b", max_memory="10GiB", strict=True, resume=False,
        enforce_eager=False, limit=None, max_kld=0.05, engine_arg=["a=1", "b=2"], file=[Path("x")],
        chat_template_kwargs={"enable_thinking": False}, text="a" * 1001,
    )  # fmt: skip
    assert spec.words() == [
        "kld",
        "--model=-m",
        "--reference=b",
        "--max-memory=10GiB",
        "--strict",
        "--no-enforce-eager",
        "--max-kld=0.05",
        "--engine-arg=a=1",
        "--engine-arg=b=2",
        "--file=x",
        '--chat-template-kwargs={"enable_thinking": false}',
        "--text=<1001 characters>",
    ]
    read = commands.parsed_command(spec.words())
    values = {name: getattr(spec, name) for name in spec.flags}
    shown = {"model": None, "model_flag": "-m", "text": "<1001 characters>"}
    assert {name: getattr(read, name) for name in read.flags} == values | shown


def test_a_measurement_is_the_command_lines_to_the_bit(demo, tmp_path, capsys):
    """Its record's command, run as it stands, gives the same scores."""
    text = "The same value is computed once and the result is used again. " * 20
    settings = {"context_length": 32, "protocol": "disjoint", "device": "cpu"}
    run = scoremode.measure(
        str(demo / "model"), text=text, output=tmp_path / "one", quiet=True, **settings
    )
    assert capsys.readouterr() == ("", "")
    assert run.folder.parent == tmp_path / "one" and run.record.document["status"] == "done"
    assert run.record.document["command"][:2] == ["scoremode", "ppl"]
    # A text of pages is no part of a command line, nor of a record.
    assert run.record.document["command"][-1] == f"--text=<{len(text)} characters>"
    (tmp_path / "text").write_text(text)
    again = [
        word for word in run.record.document["command"][1:] if word[:6] not in ("--text", "--outp")
    ]
    again += ["-f", str(tmp_path / "text"), "-o", str(tmp_path / "two"), "--json"]
    assert commands.main(again) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["plan"]["sha256"] == run.record.document["plan"]["sha256"]
    assert record["metrics"] == run.record.document["metrics"]
    assert record["scores"]["sha256"] == run.record.document["scores"]["sha256"]
    # Of the call alone, not of the hours that a notebook has been open.
    assert run.record.document["seconds"]["start"] < 1 < record["seconds"]["start"]


def test_wrong_keywords_and_values_raise_and_end_nothing(demo, tmp_path):
    model = str(demo / "model")
    with pytest.raises(TypeError, match="unexpected keyword argument 'contextlength'"):
        scoremode.measure(model, text="a b", contextlength=3)  # pyright: ignore
    for keywords, words in (
        ({"protocol": "nonesuch"}, "unknown protocol 'nonesuch'"),
        ({"context_length": "many"}, "'many' is not a number of tokens"),
        ({"dtype": "int4"}, "int4"),
        ({"full": True}, "full=True: changes nothing without a reference"),
        ({"gate_on": "upper", "reference": model}, "gate_on='upper': there is no gate"),
        ({"keep": True}, "give output=DIR"),
        ({"file": tmp_path}, "several texts"),
    ):
        with pytest.raises(scoremode.ScoremodeError, match=words) as error:
            scoremode.measure(model, text="a b c d", quiet=True, **keywords)
        assert error.value.exit_code == 2
    with pytest.raises(scoremode.RunFolderError, match=r"^output=.*: is not a folder$"):
        scoremode.measure(model, text="a b", output=__file__, quiet=True)


def test_an_opened_run_has_its_scores_as_columns(finished):
    run = scoremode.open_run(finished)
    assert run.metrics["kld"].value == run.record.document["metrics"]["kld"]["value"]
    low, high = run.metrics["ppl"].ci95 or (0, 0)
    assert low < run.metrics["ppl"].value < high
    assert np.exp(-run.scores["logprob"].mean()) == pytest.approx(run.metrics["ppl"].value)
    table = run.arrow()
    assert table.column_names == list(run.scores) and table.num_rows == run.metrics["ppl"].n
    assert table["kld"].to_numpy().mean() == pytest.approx(run.metrics["kld"].value)
    assert table.schema.field("kld").type == "double" and table["target"].type == "int32"


def test_a_printed_run_is_what_show_prints(finished, capsys):
    assert commands.main(["show", str(finished)]) == 0
    assert f"{scoremode.open_run(str(finished))}\n" == capsys.readouterr().out


def test_a_run_that_was_changed_is_not_opened(finished, tmp_path):
    folder = write_run(tmp_path / "changed", made(**PLACES, noise=0.4))
    record = json.loads((folder / "record.json").read_text())
    record["metrics"]["kld"]["value"] /= 2
    (folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(scoremode.RunFolderError, match=r"its metrics\.kld\.value is"):
        scoremode.open_run(folder)
    run = scoremode.open_run(finished)
    other = write_run(tmp_path / "other", made(**PLACES, noise=0.5))
    with pytest.raises(scoremode.RunFolderError, match="its sha256 is"):
        scoremode.Run(other, run.record).scores  # noqa: B018


def test_gates_on_an_opened_run(finished, tmp_path):
    run = scoremode.open_run(finished)
    run.require(max_kld=10, min_top1="1%", gate_on="upper")
    with pytest.raises(scoremode.GateNotMet) as error:
        run.require(max_kld=1e-3, min_top1="99.90%", max_ppl_ratio=100)
    message = str(error.value)
    assert message.startswith(f"{finished}: gate not met: max_kld=0.001: the mean KLD is ")
    assert "; gate not met: min_top1='99.90%': " in message and "ppl-ratio" not in message
    with pytest.raises(scoremode.UsageError, match="no gate is given"):
        run.require()
    with pytest.raises(scoremode.UsageError, match="a share is at most 100 %"):
        run.require(min_top1="101%")
    alone = write_run(tmp_path / "alone", replace(made(**PLACES, noise=0.4), against=None))
    with pytest.raises(scoremode.UsageError, match="has no base"):
        scoremode.open_run(alone).require(max_kld=1)


def test_runs_are_compared_as_folders_or_as_runs(finished, tmp_path):
    other = write_run(tmp_path / "two", made(**PLACES, noise=0.1))
    ranking = scoremode.compare([scoremode.open_run(finished), other])
    assert [row["model"] for row in ranking["runs"]] == ["two", "one"]
    assert ranking["ranked_by"] == "kld"
    assert scoremode.compare([finished, str(other)], by="ppl")["ranked_by"] == "ppl"


def test_shards_are_merged_to_the_run_that_a_call_makes(demo, tmp_path, capsys):
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:5000]
    settings = {"protocol": "disjoint", "context_length": 64, "device": "cpu", "batch_size": 4,
                "max_memory": "2MB", "text": text, "quiet": True}  # fmt: skip
    whole = scoremode.measure(demo / "model", output=tmp_path / "whole", **settings)
    runs = [
        scoremode.measure(demo / "model", output=tmp_path / "s", shard=f"{i}/2", **settings)
        for i in (1, 2)
    ]
    assert "shard       1 of 2, done" in str(runs[0]) and "PPL" not in str(runs[0])
    for member in ("metrics", "scores"):
        with pytest.raises(scoremode.RunFolderError, match="is shard 1/2 of a run, and no whole"):
            getattr(runs[0], member)
    with pytest.raises(scoremode.RunFolderError, match="is shard 1/2 of a run, and no whole"):
        scoremode.open_run(runs[0].folder)
    merged = scoremode.merge(runs, tmp_path / "merged", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert merged.folder == tmp_path / "merged" and merged.metrics == whole.metrics
    assert merged.record.document["scores"] == whole.record.document["scores"]
    assert (
        scoremode.open_run(tmp_path / "merged").record.document["merged"]
        == merged.record.document["merged"]
    )
    with pytest.raises(scoremode.UsageError, match="shard: 3/2: must be i/N"):
        scoremode.measure(demo / "model", shard="3/2", **settings)
    # As the command line does it, with the line that the record has.
    again = [
        *merged.record.document["command"][1:-1],
        f"--output-path={tmp_path / 'again'}",
        "--quiet",
    ]
    assert commands.main(again) == 0
    assert (tmp_path / "again" / "scores.parquet").read_bytes() == (
        tmp_path / "merged" / "scores.parquet"
    ).read_bytes()
