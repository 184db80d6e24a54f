"""The http engine from the command line: what it is asked that a server can't do, and what it shows."""

import json

import pytest
from support import specs
from support.programs import error_of, run
from support.servers import answering, serving

import scoremode
from scoremode.cli.engines import http_options
from scoremode.cli.measure import Kld, Ppl
from scoremode.errors import UsageError
from scoremode.results.folders.store import find_runs

HTTP = "--engine", "http", "--base-url", "http://127.0.0.1:9/v1"


def options(command, *flags):
    return http_options(specs.given(command, "model", *HTTP, *flags))


def test_flags_reach_the_options():
    found = options(Ppl, "--model-name", "m", "--concurrency", "3", "--api-key-env", "KEY")
    assert (found.base_url, found.model, found.concurrency) == (HTTP[-1], "m", 3)
    assert (found.key, found.top, found.timeout) == ("KEY", 1, 600)
    compared = options(Kld, "--reference", "base", "--dtype", "bfloat16", "--request-timeout", "9")
    assert (compared.top, compared.base.dtype, compared.timeout) == (20, "bfloat16", 9)
    assert options(Kld, "--reference", "base", "--top-logprobs", "100").top == 100


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--full"], "--full: needs the model's whole distribution"),
        (["--draft", "0.5"], "--draft 0.5: needs the model's whole distribution"),
        (["--noise-floor"], "--noise-floor auto: runs the base again"),
        (["--llama-cpp-block"], "--llama-cpp-block: is made of exact divergences"),
        (["--max-kld", "0.1"], "--max-kld 0.1: needs an exact divergence"),
        (["--min-acceptance", "99%"], "--min-acceptance 0.99: needs an exact total variation"),
        (["--swap", "layers.0=x"], "--swap layers.0=x: changes a model's weights"),
        (["--kv-cache", "fp8_e4m3"], "--kv-cache fp8_e4m3: is the server's own choice"),
        (["-tp", "2"], "--tensor-parallel-size 2: is for --engine vllm; a server has its own"),
        (["--devices", "2"], "--devices 2: .*--concurrency"),
        (["--concurrency", "0"], "--concurrency 0: must be at least 1"),
        (["--top-logprobs", "0"], "--top-logprobs 0: must be at least 1"),
        (["--request-timeout", "0"], "--request-timeout 0: must be above 0"),
    ],
)
def test_what_a_server_cannot_do_is_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        options(Kld, "--reference", "base", *flags)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppl", *HTTP], "--engine http: token ids are sent: whose? give --tokenizer PATH"),
        (["ppl", "M", "--engine", "http"], "--engine http: which server? --base-url"),
        (
            ["reference", "M", "-o", "x", "--engine", "http"],
            "is for scoremode ppl and scoremode kld",
        ),
        (["ppl", "M", "--base-url", "x"], "--base-url x: is for --engine http"),
        (["kld", "M", "N", "--reference", "B", *HTTP, "--text", "a"], "takes one MODEL"),
        (["attribute", "M", "--reference", "B", "--engine", "http"], "'http'"),
        (["generate", "M", "--prompts", "x", "-o", "y.jsonl", "--engine", "http"], "'http'"),
    ],
)
def test_a_command_that_it_is_not_for_says_so(words, message, capsys):
    code, _, err = run(capsys, *words)
    assert code == 2 and message in error_of(err)


def test_a_served_model_is_measured_without_its_files(demo, capsys, tmp_path):
    out = "-o", str(tmp_path / "runs"), "-f", str(demo / "heldout.txt"), "-c", "64", "--limit", "3"
    with serving(demo / "model") as served:
        asked = "--engine", "http", "--base-url", served.url
        tokenizer = str(demo / "model" / "tokenizer.json")
        code, shown, _ = run(capsys, "ppl", *asked, "--tokenizer", tokenizer, *out, "-v")
    assert code == 0
    for words in (
        "tiny: PPL ",
        "model        tiny (served)\n",
        "server gives     every target exactly, and the likeliest ids, 1 of them asked for",
        "aligned          at 3 places of window 0",
        "it adds 1 token to a text, and none to ids",
        "device           vLLM 0.32.0 at 127.0.0.1",
        "bits per weight  not known: served: its weights are the server's",
    ):
        assert words in shown
    ((folder, record),) = find_runs(tmp_path / "runs")
    assert record["engine"]["vocabulary"] == 1024
    # Its files are the server's; all else that an audit holds, it holds.
    code, checked, _ = run(capsys, "check", str(folder), "--tokenizer", tokenizer)
    assert code == 0 and "wrong: 0" in checked and "are the server's" in checked
    code, card, _ = run(capsys, "card", str(folder))
    assert code == 0 and "Computed by a vLLM 0.32.0 server, which says nothing of dtype" in card
    assert "--base-url http://HOST:PORT/v1" in card and str(served.port) not in card
    code, page, _ = run(capsys, "compare", str(folder), "--json")
    assert code == 0 and json.loads(page)["runs"][0]["label"] == "tiny"


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({}, "lists no models at /v1/models: is --base-url right?"),
        ({"/v1/models": {"data": []}}, "lists no models"),
        ({"/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}}, "is llama-server, which"),
        (
            {
                "/v1/models": {"data": [{"id": "m", "owned_by": "m"}]},
                "/info": {"model_sha": "x", "max_total_tokens": 2048},
            },
            "is text-generation-inference, which takes text",
        ),
    ],
)
def test_a_server_that_gives_none_is_refused_by_its_name(pages, words, demo, capsys, tmp_path):
    with answering(lambda path, body: pages.get(path)) as port:
        asked = "--engine", "http", "--base-url", f"http://127.0.0.1:{port}/v1"
        model, text = str(demo / "model"), ("--text", "a b c " * 50)
        code, _, err = run(capsys, "ppl", model, *asked, *text, "-o", str(tmp_path / "runs"))
    assert code == 1 and words in error_of(err)
    assert not (tmp_path / "runs").exists()


def test_a_program_asks_the_same(demo, tmp_path):
    text, model = (demo / "heldout.txt").read_text(encoding="utf-8")[:2000], demo / "model"
    given = {"text": text, "context_length": 64, "protocol": "disjoint", "quiet": True}
    with serving(model, "sglang") as served:
        asked = given | {"engine": "http", "base_url": served.url, "tokenizer": model}
        one = scoremode.measure(None, output=tmp_path / "one", **asked)
        two = scoremode.kld(
            None, reference=model, output=tmp_path / "two", dtype="float32", top_logprobs=3, **asked
        )
    own = scoremode.measure(model, output=tmp_path / "own", dtype="float32", device="cpu", **given)
    for found in (one, two):
        assert found.record.metrics["ppl"].value == pytest.approx(
            own.record.metrics["ppl"].value, rel=1e-5
        )
    assert "kld" not in two.record.metrics and two.record.metrics["kld_least"].value < 1e-4
    with pytest.raises(UsageError, match="token ids are sent: whose"):
        scoremode.measure(None, **(asked | {"tokenizer": None}))
    with pytest.raises(UsageError, match="no model: give a folder"):
        scoremode.measure(None, **given)


def test_shards_of_a_served_model_are_merged(demo, capsys, tmp_path, monkeypatch):
    for name in ("_PASS_TOKENS", "_BATCH_TOKENS"):
        monkeypatch.setattr(f"scoremode.engines.http.engine.{name}", 128)
    model, out = str(demo / "model"), ("-o", str(tmp_path / "runs"))
    text = "-f", str(demo / "heldout.txt"), "-c", "64", "--limit", "6", "--dtype", "float32"
    with serving(demo / "model") as served:
        asked = ("kld", model, "--engine", "http", "--base-url", served.url, "--reference", model)
        for shard in ("1/2", "2/2"):
            code, _, err = run(capsys, *asked, *text, *out, "--shard", shard)
            assert code == 0, err
    folders = [str(folder) for folder, _ in find_runs(tmp_path / "runs")]
    code, shown, err = run(capsys, "merge", *folders, "-o", str(tmp_path / "merged"))
    assert code == 0, err
    assert "KLD bound          ≥ " in shown and "in 6 windows" in shown
