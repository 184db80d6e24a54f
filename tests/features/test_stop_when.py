"""`--stop-when`: runs end where the rule must end them, to the same bits whatever came between."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.programs import error_of, run, told

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable, RunFolderError, UsageError
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import SCORES, read_record, read_scores, seal_of
from scoremode.results.statistics.windows import window_sums
from scoremode.runs.measure import measure
from scoremode.runs.passes import RunWatch
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

PLAIN = preset("disjoint").override(context_length=32)


@pytest.fixture(scope="module")
def ask(demo, tmp_path_factory) -> Request:
    folder = tmp_path_factory.mktemp("models") / "w4"
    quantize_folder(demo / "model", folder, VARIANTS[1])
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:9000]
    return Request(
        model=str(folder),
        corpus=from_string(text),
        protocol=PLAIN.override(stop_when="kld±4%", seed=0),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=4, max_memory=2_000_000),
        output=Path(),
        reference=str(demo / "model"),
    )


@pytest.fixture(scope="module")
def whole(ask, tmp_path_factory) -> Path:
    """All windows, in the order of the text."""
    return measure(replace(ask, protocol=PLAIN, output=tmp_path_factory.mktemp("whole"))).folder


@pytest.fixture(scope="module")
def stopped(ask, tmp_path_factory) -> Path:
    return measure(replace(ask, output=tmp_path_factory.mktemp("stopped"))).folder


def bits(folder: Path) -> tuple:
    record = load_run(folder)[0].document
    sections = "metrics", "stopping", "plan", "distribution", "breakdown", "worst"
    return (folder / SCORES).read_bytes(), [record[name] for name in sections]


def test_it_ends_at_the_first_look_that_meets_the_rule(stopped, whole, ask):
    typed, scores = load_run(stopped)
    record = typed.document
    plan, stopping = record["plan"], record["stopping"]
    looks = stopping["looks"]
    assert plan["windows"] == stopping["after"] == looks[-1]["windows"] < plan["planned"]["windows"]
    assert [look["met"] for look in looks] == [False] * (len(looks) - 1) + [True] and looks[1:]
    assert plan["scored"] == len(scores) < plan["planned"]["scored"]
    assert record["metrics"]["kld"]["n"] == len(scores)
    low, high = looks[-1]["ci95"]
    assert max(high - looks[-1]["value"], looks[-1]["value"] - low) <= 0.04 * looks[-1]["value"]
    assert looks[-1]["value"] == pytest.approx(record["metrics"]["kld"]["value"], rel=1e-12)
    # The windows that the seed draws, scored as they are among all.
    text = plan_text(ask.corpus, ask.protocol, model=ask.model).plan
    first = scores.index[np.unique(scores.window, return_index=True)[1]]
    assert np.array_equal(first, (text.start + text.first)[: plan["windows"]])
    every = read_scores(whole)
    where = np.searchsorted(every.index, scores.index)
    assert np.array_equal(every.index[where], scores.index)
    assert np.allclose(every.logprob[where], scores.logprob, atol=1e-4)
    # The hash of a protocol without a rule is what it always was.
    assert "stop_when" not in read_record(whole)["protocol"]
    assert read_record(whole)["protocol"]["sha256"] == PLAIN.resolve(None).sha256
    assert plan["planned"]["sha256"] == record["identity"]["plan"]
    assert plan["planned"]["sha256"] != read_record(whole)["plan"]["sha256"]


def test_the_end_depends_on_nothing_but_scores(ask, stopped, tmp_path, monkeypatch):
    """Passes of other lengths, and estimates that somebody watches, change no bit."""
    seen = []
    options = replace(ask.options, max_memory=8_000_000)
    other = measure(replace(ask, options=options, output=tmp_path), watch=seen.append)
    assert other.record.document["schedule"] != read_record(stopped)["schedule"]
    # A file of scores has a group of rows for each pass.
    assert bits(other.folder)[1] == bits(stopped)[1]
    ours, theirs = read_scores(other.folder).columns(), read_scores(stopped).columns()
    assert all(np.array_equal(column, theirs[name]) for name, column in ours.items())
    # What was watched last is what the rule saw last.
    last = other.record.document["stopping"]["looks"][-1]
    assert seen[-1]["kld"].value == last["value"] and list(seen[-1]["kld"].interval) == last["ci95"]
    assert len(seen) >= len(other.record.document["stopping"]["looks"])


class Stop(BaseException):
    """As a kill would, leaves what is on disk."""


@pytest.mark.parametrize("after", [1, 9, 12])
def test_a_killed_run_ends_at_the_same_window_with_the_same_bits(ask, stopped, after, tmp_path):
    asked = replace(ask, output=tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        own, count = TorchEngine._score_states, []

        def stopping(self, *arguments):
            count.append(1)
            if len(count) > after:
                raise Stop
            return own(self, *arguments)

        patched.setattr(TorchEngine, "_score_states", stopping)
        with pytest.raises(Stop):
            measure(asked)
    done = measure(replace(asked, resume=True))
    assert bits(done.folder) == bits(stopped)
    assert not (done.folder / "parts").exists()
    # Found again, as any finished run.
    assert measure(replace(asked, resume=True)).folder == done.folder


def test_killed_before_the_last_record_it_scores_nothing_more(ask, stopped, tmp_path, monkeypatch):
    """All parts are there: the decision is made from them."""
    asked = replace(ask, output=tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "scoremode.runs.run.ScoredRun._complete", lambda *_: (_ for _ in ()).throw(Stop())
        )
        with pytest.raises(Stop):
            measure(asked)

    def nothing(*_):
        raise AssertionError("scored again")

    monkeypatch.setattr(TorchEngine, "_score_states", nothing)
    done = measure(replace(asked, resume=True))
    assert bits(done.folder) == bits(stopped)


def test_a_kept_base_gives_what_a_live_one_does(ask, stopped, tmp_path):
    """Kept in the order of the text, looked up by window."""
    kept = tmp_path / "reference"
    assert ask.reference is not None
    base = replace(
        ask, model=ask.reference, reference=None, protocol=PLAIN, output=kept, keep="stored"
    )
    measure(base)
    found = measure(replace(ask, reference=str(kept), output=tmp_path / "runs"))
    assert found.record.document["stopping"] == read_record(stopped)["stopping"]
    assert found.record.document["reference"]["replay"]["worst"] < 1e-4
    ours, theirs = read_scores(found.folder), read_scores(stopped)
    assert np.array_equal(ours.logprob, theirs.logprob)
    assert np.allclose(ours.against.kld, theirs.against.kld, atol=1e-5)
    # Of another plan, it is refused as ever.
    other = replace(ask, reference=str(kept), protocol=ask.protocol.override(stride=16))
    with pytest.raises(ReferenceUnusable, match="stride"):
        measure(replace(other, output=tmp_path / "other"))
    with pytest.raises(UsageError, match="a reference has all windows"):
        measure(replace(base, protocol=ask.protocol, output=tmp_path / "no"))


def test_a_rule_that_is_never_met_takes_all_windows(ask, whole, tmp_path):
    protocol = PLAIN.override(stop_when="ppl±0.001%", seed=2)
    record = measure(replace(ask, protocol=protocol, output=tmp_path)).record.document
    planned = record["plan"].pop("planned")
    assert planned == {name: record["plan"][name] for name in planned}
    assert record["stopping"]["after"] == record["stopping"]["of"] == planned["windows"]
    every = read_record(whole)
    assert record["metrics"]["ppl"]["value"] == pytest.approx(
        every["metrics"]["ppl"]["value"], rel=1e-6
    )
    assert record["metrics"]["kld"]["n"] == every["metrics"]["kld"]["n"]


def test_runs_that_ended_elsewhere_are_not_ranked(ask, stopped, whole, tmp_path):
    same = tmp_path / "same"
    shutil.copytree(stopped, same)
    assert len(ranking([stopped, same])["runs"]) == 2
    with pytest.raises(RunFolderError, match="not comparable: protocol's stop_when"):
        ranking([stopped, whole])
    eight = VARIANTS[0]
    quantize_folder(Path(str(ask.reference)), tmp_path / "w8", eight)
    far = measure(replace(ask, model=str(tmp_path / "w8"), output=tmp_path / "w8-runs"))
    counts = [read_record(f)["plan"]["windows"] for f in (stopped, far.folder)]
    assert counts[0] != counts[1]
    with pytest.raises(RunFolderError) as refused:
        ranking([stopped, far.folder])
    words = f"number of windows when kld±4% ended it {counts[0]} and {counts[1]}"
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["stopping"]["looks"][0].update(value=0.9), "stopping.looks.0.value"),
        (lambda r: r["stopping"].update(after=40), "stopping.after"),
        (lambda r: r["protocol"].update(stop_when="kld±50%"), "ends the run after 32"),
        (lambda r: r["protocol"].update(stop_when="kld±0.1%"), "ends the run after more"),
        (lambda r: r["protocol"].update(stop_when="kld"), "no rule to stop by"),
        (lambda r: r["protocol"].pop("seed"), "its seed None"),
        (lambda r: r["plan"].pop("planned"), "lacks the windows"),
        (lambda r: r["plan"]["planned"].update(sha256="0" * 64), "identity.plan"),
        (lambda r: r.pop("protocol") and None, "protocol"),
    ],
)
def test_a_record_that_says_otherwise_than_its_scores_is_refused(stopped, change, words, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    record = read_record(folder)
    change(record)
    record["sha256"] = seal_of(record)
    (folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match="(?s).*" + words):
        load_run(folder)


def test_nobody_who_looks_costs_nothing(ask):
    plan = plan_text(ask.corpus, PLAIN, model=ask.model).plan
    watch = RunWatch(plan)
    watch.add(None)  # pyright: ignore[reportArgumentType]
    assert not watch.looks and not watch.ends(len(plan))


def test_weights_of_windows_count_in_the_decision(ask, tmp_path):
    """hf-guide weighs a window's mean otherwise than by its targets, and so does the rule."""
    protocol = preset("hf-strided").override(
        context_length=32, stride=16, stop_when="ppl±25%", seed=1
    )
    record, scores = load_run(
        measure(replace(ask, reference=None, protocol=protocol, output=tmp_path)).folder
    )
    from scoremode.results.folders.finished import read_verified

    extras = read_verified(next(tmp_path.iterdir()), record)[1]
    sums = window_sums(scores, extras["weight"])
    value = np.exp(sums.columns["nll"].sum() / sums.weight.sum())
    assert record.stopping.looks[-1].value == pytest.approx(value, rel=1e-12)
    assert value == pytest.approx(record.metrics["ppl"].value, rel=1e-12)
    assert extras["weight"].max() < 1


@pytest.fixture
def short(demo, tmp_path) -> list[str]:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:9000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return ["ppl", str(demo / "model"), "-f", str(tmp_path / "text.txt"), "--protocol", "disjoint",
            "-c", "32", "--device", "cpu", "-o", str(tmp_path / "runs")]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "3"], "--seed 3: draws what is asked for by --num-samples or --stop-when"),
        (["--stop-when", "ppl ±1 %", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["--stop-when", "ppl 1 %"], "'ppl 1 %' is no rule to stop by such as 'ppl ±0.5 %'"),
        (
            ["--stop-when", "kld ±1 %"],
            "--stop-when kld±1%: there is no KLD without --reference BASE",
        ),
    ],
)
def test_what_can_not_be_is_one_line(short, capsys, flags, words):
    code, out, err = run(capsys, *short, *flags)
    assert code == 2 and out == "" and words in error_of(err)


def test_a_run_says_where_it_ended_and_what_all_would_give(short, capsys):
    code, out, err = run(capsys, *short, "--stop-when", "ppl +-30%", "--json")
    assert (code, told(err)) == (0, "")
    record = json.loads(out)
    assert record["protocol"]["name"] == "disjoint+context-length=32+stop-when=ppl±30%+seed=0"
    assert record["stopping"]["after"] < record["stopping"]["of"]
    code, out, err = run(capsys, *short, "--stop-when", "ppl ±30 %", "--resume")
    assert code == 0 and "already finished" in err
    after, of = record["stopping"]["after"], record["stopping"]["of"]
    assert f"by ppl±30% after {after} of {of} windows, drawn with seed 0: all would give PPL" in out


def test_what_needs_all_windows_takes_none(short, capsys):
    _, model, *rest = short
    compared = ["--reference", model, "--noise-floor"]
    for command, more, words in (
        ("reference", [], "a reference has all windows"),
        ("kld", compared, "and --noise-floor auto: the base would run again over all windows"),
    ):
        given = [model, *rest, *more, "--stop-when", "ppl ±1%"]
        code, _, err = run(capsys, command, *given)
        assert code == 2 and words in error_of(err)
