"""`scoremode ppl --engine vllm` as a user runs it: records, resuming, interrupting."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from engines.vllm.dtypes import SERVED, of_avx512
from engines.vllm.harness import Program, finish, kill
from engines.vllm.processes import TWO_RANKS
from support.chats.runs import TEMPLATE, write_rows

from scoremode.results.folders.store import find_runs, read_scores
from scoremode.results.folders.tables import REQUESTS

Run = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="session")
def command(engines, demo) -> Callable[..., list[str]]:
    """Arguments of a run into a folder."""

    def make(folder: Path, *more: str, engine: str = "vllm") -> list[str]:
        model = str(demo / "model")
        return ["-m", "scoremode", "ppl", model, "--engine", engine, "-o", str(folder), *more]

    return make


@pytest.fixture(scope="session")
def long_text(demo) -> list[str]:
    """Several passes, so that a run can be met in the middle."""
    return ["-f", str(demo / "heldout.txt"), "-c", "512", "--protocol", "disjoint"]


@pytest.fixture(scope="session")
def measured(engines, command) -> Callable[..., Run]:
    """The one run of a name: its folder and what it put on stdout, run once a session."""

    def measure(name: str, *more: str, engine: str = "vllm") -> Run:
        folder = engines.folder / f"runs-{name}"
        stdout = engines.folder / f"runs-{name}.json"
        with engines.once(f"run {name}") as is_first:
            if is_first:
                arguments = command(folder, *more, "--json", engine=engine)
                code, out, err = engines.run(arguments)
                assert code == 0, err
                stdout.write_text(out)
        ((found, record),) = find_runs(folder)
        # Pure JSON: vLLM, gloo and torch have written nothing there.
        assert json.loads(stdout.read_text()) == record
        return found, record

    return measure


def wait_for_part(folder: Path, program: Program) -> None:
    """Until the program's run has its first pass on disk, and the record that knows of it."""
    # Interrupted with a part that the record doesn't know yet, a run is discarded.
    while not any(record.get("parts") for _, record in find_runs(folder)):
        assert program.process.poll() is None, program.output()
        time.sleep(0.002)


def same_bits(one: Path, other: Path) -> bool:
    columns = [read_scores(folder).columns() for folder in (one, other)]
    assert len(columns[0]["logprob"]) > 20_000
    return all(columns[0][n].tobytes() == columns[1][n].tobytes() for n in columns[0])


def test_the_record_says_what_ran(measured, long_text):
    _, record = measured("whole", *long_text)
    engine = record["identity"]["engine"]
    assert engine["engine"] == "vllm" and engine["vllm"].startswith("0.")
    assert engine["path"] == "pooler" and engine["linear"] == {"UnquantizedLinearMethod": 12}
    assert record["status"] == "done"


@pytest.mark.large
def test_pages_have_the_torch_engines_log_likelihoods(measured, demo, engines):
    """Of several windows a page, and fewer tokens than a model reads."""
    text = (demo / "heldout.txt").read_text()
    file = engines.folder / "pages.jsonl"
    with engines.once("pages") as is_first:
        if is_first:
            rows = (text[:4000], text[4000:4300], "x", text[5000:9000])
            file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    asked = [
        "--protocol",
        "lm-eval",
        "--dataset-file",
        str(file),
        "-c",
        "256",
        "--dtype",
        "float32",
    ]
    runs = [measured(f"pages-{name}", *asked, engine=name) for name in ("vllm", "torch")]
    found, wanted = (pq.read_table(folder / REQUESTS).to_pydict() for folder, _ in runs)
    assert found["words"] == wanted["words"] and len(found["words"]) == 4
    assert max(map(len, found["windows"])) > 3
    assert found["logprob"] == pytest.approx(wanted["logprob"], abs=2e-3)
    metrics = [record["pages"]["metrics"]["word_perplexity"]["value"] for _, record in runs]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


@pytest.mark.large
def test_two_runs_give_the_same_bits(measured, long_text):
    runs = [measured(name, *long_text) for name in ("whole", "again")]
    assert runs[0][0] != runs[1][0] and same_bits(runs[0][0], runs[1][0])
    assert runs[0][1]["metrics"] == runs[1][1]["metrics"]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_killed_run_goes_on_to_the_same_bits(
    phase, measured, long_text, command, engines, tmp_path
):
    """They are those of another run: each pass has been computed by two processes."""
    if phase == "decode":
        long_text = [*long_text, "--decode"]
    program = engines.start(command(tmp_path, *long_text))
    wait_for_part(tmp_path, program)
    kill(program)
    ((folder, record),) = find_runs(tmp_path)
    assert record["status"] == "running" and not (folder / "scores.parquet").exists()
    code, _, err = engines.run(command(tmp_path, *long_text, "--resume"))
    assert code == 0 and f"resuming {folder} after" in err
    ((resumed, record),) = find_runs(tmp_path)
    whole, reference = measured("whole" if phase == "prefill" else "decoded", *long_text)
    assert resumed == folder and same_bits(folder, whole)
    assert record["metrics"] == reference["metrics"]
    assert record["engine"].get("phase", "prefill") == phase


@pytest.mark.parametrize(
    "everyone", [True, pytest.param(False, marks=pytest.mark.large)], ids=["group", "process"]
)
def test_interrupting_ends_every_process(everyone, long_text, command, engines, tmp_path):
    """Ctrl-C reaches the whole group, `kill -INT` one process; either way the workers go as well."""
    program = engines.start(command(tmp_path, *long_text, "-tp", "2"), **TWO_RANKS)
    wait_for_part(tmp_path, program)
    pid = program.process.pid
    if everyone:
        os.killpg(pid, signal.SIGINT)
    else:
        program.process.send_signal(signal.SIGINT)
    finish(program)
    assert program.process.returncode == 130
    assert "scoremode: interrupted" in program.output()[1]
    ((_, record),) = find_runs(tmp_path)
    assert record["status"] == "running"


@pytest.mark.large
def test_conversations_are_the_torch_engines(measured, engines, demo):
    """Windows of unequal lengths, of which the assistant's targets alone are scored."""
    chats, template = engines.folder / "chats.jsonl", engines.folder / "chats.jinja"
    with engines.once("chats") as is_first:
        if is_first:
            template.write_text(TEMPLATE)
            write_rows(demo, chats)
    text = ("--conversations", str(chats), "--chat-template", str(template), "-c", "64",
            "--long", "split", "--group-by", "domain", "--dtype", "float32")  # fmt: skip
    ours = measured("chats", *text, "--engine-arg", "block_size=32")
    theirs = measured("chats-torch", *text, engine="torch")
    scores, wanted = read_scores(ours[0]), read_scores(theirs[0])
    for name in ("window", "position", "index", "target"):
        assert np.array_equal(scores.columns()[name], wanted.columns()[name])
    np.testing.assert_allclose(scores.logprob, wanted.logprob, rtol=0, atol=1e-4)
    plan = ours[1]["plan"]
    # Not every token counts, and some windows go on with a conversation.
    assert len(scores) == plan["scored"] < plan["tokens"] * 0.7
    assert plan["windows"] > plan["conversations"] == 12
    assert len(ours[1]["breakdown"]["label"]) == 3


_SLIDING = ("-c", "256", "--stride", "128", "--dtype", "float32")


@pytest.mark.large
def test_sliding_windows_are_the_torch_engines(measured, demo, ran):
    text = ("-f", str(demo / "heldout.txt"))
    ours = measured("sliding", *text, *_SLIDING, "--engine-arg", "block_size=32")
    theirs = measured("sliding-torch", *text, *_SLIDING, engine="torch")
    scores, wanted = read_scores(ours[0]), read_scores(theirs[0])
    for name in ("window", "position", "index", "target"):
        assert np.array_equal(scores.columns()[name], wanted.columns()[name])
    np.testing.assert_allclose(scores.logprob, wanted.logprob, rtol=0, atol=1e-4)
    ppl, other = (r["metrics"]["ppl"]["value"] for r in (ours[1], theirs[1]))
    assert ppl == pytest.approx(other, rel=1e-6)
    assert ours[1]["plan"] == theirs[1]["plan"]
    assert ours[1]["identity"]["engine"]["arguments"]["block_size"] == "32"
    # The first window against `ScoringLLM` on the same tokens.
    nll = -ran("float32", "plain").prompts("windows")[0].astype(np.float64)
    assert scores.nll[scores.window == 0].sum() == pytest.approx(nll.sum(), abs=1e-3)


@pytest.mark.large
def test_an_unknown_engine_argument_is_one_clear_line(command, engines, tmp_path):
    arguments = command(tmp_path, "--text", "a b c", "-c", "32", "--engine-arg", "nonsense=1")
    code, out, err = engines.run(arguments)
    (line,) = [line for line in err.splitlines() if "scoremode: error" in line]
    assert code == 1 and "nonsense" in line
    assert out == "" and "Traceback" not in err and list(tmp_path.iterdir()) == []


@pytest.mark.large
def test_two_ranks_measure_the_same(measured, long_text, command, engines, tmp_path):
    arguments = command(tmp_path, *long_text, "-tp", "2", "--json")
    code, out, err = engines.run(arguments, **TWO_RANKS)
    assert code == 0, err
    record, (_, single) = json.loads(out), measured("whole", *long_text)
    assert record["identity"]["engine"]["tensor_parallel_size"] == 2
    ppl, other = (r["metrics"]["ppl"]["value"] for r in (record, single))
    assert ppl == pytest.approx(other, rel=1e-3)


@pytest.mark.large
@of_avx512
def test_a_caches_format_is_vllms(measured, command, engines, demo, tmp_path):
    """float8 keys and values move the score; a format that the device's attention lacks is refused,
    where vLLM 0.32 itself would compute something else."""
    text = str(demo / "heldout.txt")
    flags = ("-f", text, "-c", "128", "--limit", "4", "--dtype", SERVED)
    _, plain = measured("cache none", *flags)
    _, cached = measured("cache fp8_e5m2", *flags, "--kv-cache", "fp8_e5m2")
    assert cached["engine"]["kv_cache_dtype"] == "fp8_e5m2"
    one, other = (record["metrics"]["nll"]["value"] for record in (plain, cached))
    assert 1e-4 < abs(one - other) < 0.1
    code, _, err = engines.run(command(tmp_path, *flags, "--kv-cache", "int8"))
    if code:
        assert "vLLM's attention CPU_ATTN has no cache in int8_per_token_head" in err
    else:
        (_, record), *_ = find_runs(tmp_path)
        assert record["engine"]["kv_cache_dtype"] == "int8_per_token_head"
