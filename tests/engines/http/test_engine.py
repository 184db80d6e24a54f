"""Runs of a served model: its scores are the model's own, and an answer that isn't ends them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.http import engine as http_engine
from scoremode.engines.http.engine import telling_places
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError, InvalidMeasurement, UsageError
from scoremode.results.folders.finished import load_run
from scoremode.results.gates import Gates
from scoremode.runs.measure import measure

SCORES = ("/v1/completions", "/generate")


def rows_of(path, reply):
    """The rows of an answer for a whole window, to be spoiled in place: their lists, and the ids."""
    if path == "/v1/completions":
        choice = reply["choices"][0]
        return [choice.get("prompt_logprobs")], choice
    meta = reply["meta_info"]
    return [meta.get("input_token_logprobs"), meta.get("input_top_logprobs")], meta


def spoil(served, change):
    """Has the server `change` the rows of its answers for windows: (path, rows, rest)."""

    def spoiled(path, body, reply):
        if path in SCORES:
            rows, rest = rows_of(path, reply)
            if rows[0] is not None:
                change(path, rows, rest)
        return reply

    served.spoil = spoiled


def test_scores_are_the_models_own(asked, demo):
    request = asked()
    run = measure(request)
    own = measure(replace(
        request, options=TorchOptions(device="cpu", dtype="float32"), model=str(demo / "model")
    ))  # fmt: skip
    (_, scores), (_, theirs) = load_run(run.folder), load_run(own.folder)
    for name in ("window", "position", "index", "target", "top1"):
        assert np.array_equal(getattr(scores, name), getattr(theirs, name))
    np.testing.assert_allclose(scores.logprob, theirs.logprob, atol=2e-5)
    np.testing.assert_allclose(scores.top1_logprob, theirs.top1_logprob, atol=2e-5)


def test_ids_are_sent_and_text_only_to_be_tokenized(asked, served):
    measure(asked())
    for path, headers, body in served.seen:
        assert "Authorization" not in headers
        if path in SCORES:
            ids = body.get("prompt", body.get("input_ids"))
            assert all(type(i) is int for i in ids) and "text" not in body
    assert {path for path, _, _ in served.seen} & set(SCORES)


def test_the_record_says_what_was_probed_and_nothing_of_a_key(asked, served, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-0123456789abcdef")
    run = measure(asked(key="SOME_KEY"))
    assert {headers.get("Authorization") for _, headers, _ in served.seen} == {
        "Bearer sk-0123456789abcdef"
    }
    for file in run.folder.iterdir():
        assert b"sk-0123456789abcdef" not in file.read_bytes()
    engine = run.record.document["engine"]
    version = {"vllm": "0.32.0", "sglang": "0.5.9"}[served.dialect]
    assert (engine["engine"], engine["model"], engine["version"]) == ("http", "tiny", version)
    assert engine["probed"]["gives"] == "every target exactly, and the likeliest ids"
    assert engine["probed"]["aligned"] == "at 3 places of window 0, by tokens generated there"
    assert engine["probed"]["tokenizer"] == "the same 512 tokens by /tokenize"
    assert engine["probed"]["adds"] == 1
    assert run.record.checkpoint.bits_per_weight.file is None
    assert str(served.port) not in json.dumps(run.record.document["identity"])


def test_a_key_that_is_not_there_is_said(asked, monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(
        UsageError, match="--api-key-env SOME_KEY: there is no such environment var"
    ):
        measure(asked(key="SOME_KEY"))


def test_a_server_that_is_off_by_one_is_found(asked, served):
    """Each row is of the token before, by ids that look right."""

    def shift(path, rows, rest):
        if path == "/generate":
            # The ids stay, and the numbers move.
            own, top = rows
            numbers = [entry[0] for entry in own[1:]]
            for entry, number in zip(own[2:], numbers, strict=False):
                entry[0] = number
            top[2:] = top[1:-1]
            return
        (entries,) = rows
        moved = [dict(row) for row in entries[1:-1]]
        for row, before in zip(entries[2:], moved, strict=True):
            best = {k: v for k, v in before.items() if v["rank"] == 1}
            own = next(iter(row))
            number = row[own]["logprob"]
            row.clear()
            row |= {own: {"logprob": min(number, -5.0), "rank": 9}, **best}

    spoil(served, shift)
    with pytest.raises(InvalidMeasurement, match="its rows are not of the tokens they seem of"):
        measure(asked())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path, rows, rest: [r.pop() for r in rows], r"gave 63 rows for 64 tokens"),
        (lambda path, rows, rest: [r.append(r[-1]) for r in rows], r"gave 65 rows for 64 tokens"),
        (lambda path, rows, rest: [r.reverse() for r in rows], "other tokens|in place of"),
    ],
)
def test_a_wrong_count_or_order_ends_the_run(change, words, asked, served):
    spoil(served, change)
    with pytest.raises(InvalidMeasurement, match=words):
        measure(asked())


def test_other_ids_end_the_run(asked, served):
    def other(path, rows, rest):
        if path == "/generate":
            rows[0][5][1] += 1
        else:
            rest["prompt_token_ids"] = [7, *rest["prompt_token_ids"][1:]]

    spoil(served, other)
    with pytest.raises(InvalidMeasurement, match="scored other tokens than those that were sent"):
        measure(asked())


def test_a_server_that_adds_a_token_is_found(asked, served):
    def longer(path, rows, rest):
        if path == "/generate":
            rest["prompt_tokens"] += 1
        else:
            rows[0].insert(0, None)
            rest["prompt_token_ids"] = [0, *rest["prompt_token_ids"]]

    spoil(served, longer)
    with pytest.raises(
        InvalidMeasurement, match=r"other than the 64 tokens|other tokens than those"
    ):
        measure(asked())


@pytest.mark.parametrize("value", [None, -9999.0, float("nan")])
def test_what_is_no_number_ends_the_run(value, asked, served):
    seen = []

    def change(path, rows, rest):
        seen.append(path)
        # Behind the probe.
        if len(seen) > 2:
            if path == "/generate":
                rows[0][9][0] = value
            else:
                next(iter(rows[0][9].values()))["logprob"] = value

    spoil(served, change)
    with pytest.raises(InvalidMeasurement, match="is not finite"):
        measure(asked())


@pytest.mark.parametrize("row", ["x", [], [1], {"a": 1}, {"-1": {}}, 5])
def test_another_shape_ends_the_run_in_a_line(row, asked, served):
    def change(path, rows, rest):
        rows[-1][3] = row

    spoil(served, change)
    with pytest.raises(InvalidMeasurement):
        measure(asked())


def test_a_probability_above_1_ends_the_run(asked, served):
    """Logits in the place of log-probabilities, as vLLM gives with --logprobs-mode raw_logits."""

    def change(path, rows, rest):
        for row in rows[0][1:]:
            if path == "/generate":
                row[0] += 9.0
            else:
                for entry in row.values():
                    entry["logprob"] += 9.0
        if path == "/generate":
            for row in rows[1][1:]:
                for entry in row:
                    entry[0] += 9.0

    spoil(served, change)
    with pytest.raises(InvalidMeasurement):
        measure(asked())


def test_a_server_without_prompt_log_probabilities_is_refused(asked, served):
    def change(path, rows, rest):
        for name in ("prompt_logprobs", "input_token_logprobs"):
            rest.pop(name, None)

    spoil(served, change)
    with pytest.raises(EngineError, match=r"gives no (log-probabilities of a prompt|input_token)"):
        measure(asked())


def test_another_tokenizer_is_refused(asked, served):
    def other(path, body, reply):
        return {"tokens": [5, *reply["tokens"][1:]]} if path == "/tokenize" else reply

    served.spoil = other
    with pytest.raises(
        EngineError, match=r"its tokenizer is another .*: token 0 of the text is \[5\]"
    ):
        measure(asked())


def test_a_tokenizer_that_the_server_doesnt_tell_is_said(asked, served):
    served.spoil = lambda path, body, reply: None if path == "/tokenize" else reply
    told = []
    run = measure(asked(), notify=told.append)
    assert any("has no /tokenize" in line for line in told)
    assert run.record.document["engine"]["probed"]["tokenizer"] == "not compared: no /tokenize"


def test_windows_longer_than_the_server_takes_are_refused(asked):
    request = asked()
    longer = request.protocol.override(context_length=512)
    with pytest.raises(EngineError, match=r"takes windows of 511 tokens .*--context-length 511"):
        measure(replace(request, protocol=longer))


def test_one_of_several_models_is_named(asked, served):
    def several(path, body, reply):
        if path == "/v1/models":
            reply["data"].append({**reply["data"][0], "id": "other"})
        return reply

    served.spoil = several
    with pytest.raises(EngineError, match="serves tiny, other: --model-name says which"):
        measure(asked())
    with pytest.raises(EngineError, match="--model-name none: it serves tiny, other"):
        measure(asked(model="none"))
    assert measure(asked(model="tiny")).record.document["engine"]["model"] == "tiny"


def small_passes(monkeypatch):
    monkeypatch.setattr(http_engine, "_PASS_TOKENS", 256)
    monkeypatch.setattr(http_engine, "_BATCH_TOKENS", 128)


def test_a_run_goes_on_where_a_server_died(asked, served, monkeypatch):
    small_passes(monkeypatch)
    whole = measure(asked())
    request = replace(asked(), output=asked().output.parent / "resumed")
    count = []

    def dies(path, body, reply):
        count.append(path in SCORES)
        return (500, {}, b'{"error": {"message": "dead"}}') if sum(count) > 12 else reply

    served.spoil = dies
    with pytest.raises(
        EngineError, match=r"500: dead: the passes before are kept, and --resume goes on"
    ):
        measure(request)
    (folder,) = request.output.iterdir()
    parts = len(json.loads((folder / "record.json").read_text())["parts"])
    assert parts
    served.spoil = lambda path, body, reply: reply
    resumed = measure(replace(request, resume=True))
    assert resumed.folder == folder
    assert (load_run(folder)[1].logprob == load_run(whole.folder)[1].logprob).all()


def test_another_server_goes_on_with_nothing(asked, served, monkeypatch):
    small_passes(monkeypatch)
    count = []

    def dies(path, body, reply):
        count.append(path in SCORES)
        return (500, {}, b"{}") if sum(count) > 12 else reply

    served.spoil = dies
    with pytest.raises(EngineError, match="--resume"):
        measure(asked())

    def updated(path, body, reply):
        known = path in ("/version", "/server_info")
        return {"version": "9.9"} if known and reply is not None else reply

    served.spoil = updated
    told = []
    measure(replace(asked(), resume=True), notify=told.append)
    assert any("nothing to resume" in line for line in told)


def test_a_server_that_changes_meanwhile_ends_the_run(asked, served, monkeypatch):
    small_passes(monkeypatch)
    count = []

    def updated(path, body, reply):
        count.append(path in SCORES)
        late = path in ("/version", "/server_info") and reply is not None and sum(count) > 8
        return {"version": "9.9"} if late else reply

    served.spoil = updated
    with pytest.raises(EngineError, match=r"is not the server any more .* its version was"):
        measure(asked())


@pytest.mark.parametrize("concurrency", [1, 5])
def test_concurrency_changes_no_score(concurrency, asked):
    one = load_run(measure(asked(concurrency=concurrency)).folder)[1]
    two = load_run(measure(asked()).folder)[1]
    assert np.array_equal(one.logprob, two.logprob)


def test_a_busy_server_is_waited_for(asked, served, monkeypatch):
    monkeypatch.setattr("scoremode.engines.http.client.PAUSES", (0,) * 6)
    monkeypatch.setattr("scoremode.engines.http.client._LONGEST_PAUSE", 0)
    count = []

    def busy(path, body, reply):
        count.append(path)
        return (429, {"Retry-After": "1"}, b"{}") if len(count) % 3 == 0 else reply

    served.spoil = busy
    measure(asked(concurrency=1))


def test_places_that_tell_rows_apart():
    ids = np.array([1, 1, 2, 3, 3, 4], np.int32)
    logprobs = np.array([-0.1, -0.1, -2.0, -0.1, -0.1, -0.5])
    assert telling_places(ids, logprobs) == [5, 2]
    assert telling_places(np.array([7], np.int32), np.array([-1.0])) == [0]
    assert telling_places(np.array([7, 7], np.int32), np.array([-1.0, -1.0])) == []


def test_a_server_that_says_one_thing_everywhere_shows_nothing(asked, served):
    def alike(path, rows, rest):
        for row in rows[-1][1:]:
            if path == "/generate":
                row[:] = [[-0.01, 3, None]]
            else:
                own = next(iter(row))
                row.clear()
                row |= {own: {"logprob": -7.0}} | {"3": {"logprob": -0.01}}

    spoil(served, alike)
    with pytest.raises(
        EngineError, match="the same token likeliest everywhere in the first windows"
    ):
        measure(asked())


@pytest.fixture(scope="module")
def bases(demo, tmp_path_factory):
    """A variant of the served model as a base: its folder."""
    folder = tmp_path_factory.mktemp("base") / "W8A16"
    quantize_folder(demo / "model", folder, next(v for v in VARIANTS if "3" in v.name))
    return folder


def exact_and_bounded(asked, demo, base, top, tmp_path):
    """The Scores of an exact comparison, and of the served model's with `top` ids, of one base."""
    torch_ = TorchOptions(device="cpu", dtype="float32")
    bounded = replace(asked(top=top, base=torch_), reference=str(base), output=tmp_path / f"{top}")
    exact = replace(bounded, options=torch_, model=str(demo / "model"), output=tmp_path / "exact")
    runs = [measure(replace(request, resume="if-there")) for request in (exact, bounded)]
    return [load_run(run.folder)[1] for run in runs], runs[1]


@pytest.mark.parametrize("top", [1, 5, 100])
def test_bounds_hold_for_every_target_of_an_exact_run(top, asked, demo, bases, tmp_path):
    (exact, bounded), run = exact_and_bounded(asked, demo, bases, top, tmp_path)
    assert exact.against is not None and bounded.bounds is not None and bounded.against is None
    bounds, against = bounded.bounds, exact.against
    assert (bounds.kld_least <= against.kld + 1e-9).all()
    assert (bounds.tv_least <= against.tv + 1e-6).all() and (
        against.tv <= bounds.tv_most + 1e-6
    ).all()
    np.testing.assert_allclose(bounds.base_logprob, against.base_logprob, atol=1e-6)
    metrics = run.record.metrics
    for name in ("kld", "tv", "acceptance", "kld_p99", "jsd"):
        assert name not in metrics
    assert metrics["kld_least"].value == pytest.approx(bounds.kld_least.mean())
    assert metrics["ppl_base"].value == pytest.approx(
        np.exp(-against.base_logprob.mean()), rel=1e-6
    )
    # Exact, since the likeliest id and the target's number are the server's own.
    same = (exact.top1 == against.base_top1).mean()
    assert metrics["top1"].value == pytest.approx(same, abs=2e-3)
    assert 0 < metrics["kld_least"].value <= against.kld.mean()


def test_a_kept_reference_is_as_good_a_base(asked, bases, tmp_path):
    torch_ = TorchOptions(device="cpu", dtype="float32")
    kept = tmp_path / "kept"
    measure(replace(asked(), options=torch_, model=str(bases), keep="stored", output=kept))
    one = measure(replace(asked(top=20, base=torch_), reference=str(kept)))
    two = measure(replace(asked(top=20, base=torch_), reference=str(bases)))
    assert one.record.document["reference"]["replay"]["rows"] == one.record.plan.scored
    for name in ("kld_least", "tv_least", "tv_most", "ppl_ratio"):
        values = [run.record.metrics[name].value for run in (one, two)]
        assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_logits_in_place_of_log_probabilities_are_no_distribution(asked, served, bases):
    def change(path, rows, rest):
        for row in rows[-1][1:]:
            entries = row if path == "/generate" else [*row.values()]
            for entry in entries:
                if path == "/generate":
                    entry[0] += 0.5
                else:
                    entry["logprob"] += 0.5
        if path == "/generate":
            for entry in rows[0][1:]:
                entry[0] += 0.5

    spoil(served, change)
    with pytest.raises(InvalidMeasurement):
        measure(replace(asked(top=20), reference=str(bases)))


def test_a_rule_on_the_kld_has_none_to_look_at(asked, bases):
    request = asked(top=20)
    stopping = request.protocol.override(stop_when="kld±10%", seed=1)
    with pytest.raises(UsageError, match="a server allows a bound on the KLD alone"):
        measure(replace(request, protocol=stopping, reference=str(bases)))


def test_a_gate_on_what_is_exact_is_judged_and_others_are_refused(asked, bases):
    gated = replace(
        asked(top=5), reference=str(bases), gates=Gates(max_ppl_ratio=9, min_top1=0.999)
    )
    run = measure(gated)
    assert [gate["met"] for gate in run.record.document["gates"]] == [True, False]
    with pytest.raises(
        UsageError, match="--max-kld: the run has no number of the mean KLD, but at"
    ):
        Gates(max_kld=0.1).judge(run.whole)
