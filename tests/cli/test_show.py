"""`scoremode show` as a user meets it: a finished run's table, gates and worst tokens again."""

import json

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, labels_of, write_run

from scoremode.cli.main import main
from scoremode.results.folders.store import read_record, read_scores
from scoremode.results.statistics.divergence import stream_of, worst_tokens

PLACES = overlapping(9000, CONTEXT, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "one"
    scores = made(**PLACES, noise=0.4)
    assert scores.against is not None
    worst = worst_tokens(scores, scores.against)
    return str(write_run(folder, scores, changes={"worst": worst}))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["show", *arguments])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("gate", "code", "words"),
    [
        (["--max-kld", "{kld}"], 0, ""),
        (["--max-kld", "{kld}", "--gate-on", "upper"], 4, "its upper bound "),
        (["--max-kld", "0.001"], 4, "gate not met: --max-kld 0.001: the mean KLD is "),
        (["--min-top1", "50%"], 0, ""),
        (["--min-top1", "99.9%"], 4, "--min-top1 99.9%: the share of same top-1 is "),
        (["--min-top1", "{top1}", "--gate-on", "upper"], 4, "its lower bound "),
        (["--max-kld", "5%"], 2, "5%: a KLD is in nats"),
        (["--max-kld-p99", "5%"], 2, "5%: a KLD is in nats"),
        (["--max-ppl-ratio", "101%"], 2, "101%: a ratio is a number such as 1.02"),
        (["--min-top1", "many%"], 2, "'many' is not a share such as 0.9 or 90%"),
        (["--min-top1", "9%0"], 2, "'9%0' is not a share"),
        (["--min-top1", "900%"], 2, "--min-top1 900%: a share is at most 100 %\n"),
        (["--min-top1", "9"], 2, "--min-top1 9: a share is at most 1, as 9% would be\n"),
        (["--max-kld", "1e-1", "--min-top1", "1.50"], 2, "--min-top1 1.50: a share is at most 1, "),
        (["--max-kld", "1e-3"], 4, "gate not met: --max-kld 1e-3: the mean KLD is "),
        (["--max-kld", "-1"], 2, "--max-kld -1: must be at least 0 and finite"),
        (["--gate-on", "upper"], 2, "--gate-on upper: there is no gate to judge"),
        (["--max-kld-p99", "{kld_p99}"], 0, ""),
        (["--max-kld-p99", "{kld_p99}", "--gate-on", "upper"], 4, "its upper bound "),
    ],
    ids=str,
)
def test_gates_on_a_finished_run(gate, code, words, folder, capsys):
    record = read_record(folder_path(folder))
    metrics = record["metrics"]
    values = {name: repr(metrics[name]["value"]) for name in ("kld", "kld_p99", "top1")}
    assert metrics["kld_p99"]["value"] == record["distribution"]["kld"]["99"]
    got, out, err = run(capsys, folder, "--quiet", *(word.format(**values) for word in gate))
    assert (got, out) == (code, "") and words in err and "Traceback" not in err
    assert (err == "") == (code == 0)


def folder_path(folder: str):
    from pathlib import Path

    return Path(folder)


def test_gates_are_in_the_table_and_in_the_json(folder, capsys):
    code, out, _ = run(capsys, folder, "--max-kld", "10", "--min-top1", "99%")
    assert code == 4
    assert "--max-kld 10: " in out and "NOT MET" in out
    code, out, _ = run(capsys, folder, "--json", "--max-kld", "10")
    assert code == 0
    (gate,) = json.loads(out)["gates"]
    assert (gate["name"], gate["limit"], gate["met"]) == ("max_kld", 10, True)
    code, out, _ = run(capsys, folder, "--json")
    shown = json.loads(out)
    assert code == 0 and [v["kind"] for v in shown.pop("verdicts")] == ["worse"] * 3
    assert shown == shown | read_record(folder_path(folder))


def test_the_worst_tokens_of_a_finished_run(folder, capsys):
    code, out, err = run(capsys, folder, "--worst", "3", "--json")
    record = read_record(folder_path(folder))
    assert (code, err) == (0, "") and json.loads(out)["worst"] == record["worst"][:3]
    # More than the record has are found in the scores; its tokenizer isn't here.
    code, out, err = run(capsys, folder, "--worst", "25", "--json")
    found = json.loads(out)["worst"]
    assert code == 0 and "showing token ids without text: models/one: doesn't exist" in err
    assert len(found) == 25 and found[:10] == record["worst"]
    kld = np.sort(read_scores(folder_path(folder)).against.kld)[::-1]  # pyright: ignore[reportOptionalMemberAccess]
    assert [fact["kld"] for fact in found] == list(kld[:25])
    code, out, _ = run(capsys, folder, "--worst", "25")
    assert out.count("\nid ") == 0 and len(out[out.index("largest KLD") :].splitlines()) == 27


def test_the_text_before_a_target_is_what_was_scored_before_it():
    scores = made(**overlapping(400, 16, 16))
    stream = stream_of(scores)
    assert (stream[scores.index] == scores.target).all()
    assert (np.flatnonzero(stream < 0) == np.arange(0, 400, 16)).all()

    class Table:
        def text(self, ids):
            return " ".join(map(str, ids))

    assert scores.against is not None
    for fact in worst_tokens(scores, scores.against, stream=stream, table=Table()):  # pyright: ignore[reportArgumentType]
        place = fact["index"]
        # A window's first token was never scored, so nobody knows it.
        begin = max(place - 12, place - fact["position"] + 1)
        assert fact["context"] == " ".join(map(str, stream[begin:place]))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--worst", "0"], 2, "'0' is not a number of targets"),
        (["--worst", "-3"], 2, "not a number of targets"),
        (["/nonesuch"], 1, "/nonesuch"),
        (
            ["{alone}", "--max-kld", "1"],
            2,
            "has no base, which a gate on KLD, ratio or top-1 needs",
        ),
        (["{alone}", "--worst", "5"], 2, "has no base, which --worst needs"),
    ],
    ids=str,
)
def test_what_there_is_not(arguments, code, words, folder, capsys, tmp_path):
    from dataclasses import replace

    alone = write_run(tmp_path / "alone", replace(made(**PLACES), against=None))
    given = [word.format(alone=alone) for word in arguments]
    got, out, err = run(
        capsys, *(given if len(given) != 2 or "{" in arguments[0] else [folder, *given])
    )
    assert (got, out) == (code, "") and words in err
    code, out, _ = run(capsys, str(alone))
    assert code == 0 and ": PPL " in out.partition("\n")[0]


def test_groups_alone_and_by_another_threshold(tmp_path, capsys):
    scores = made(**PLACES, noise=1.0)
    grouped = str(write_run(tmp_path / "one", scores, extras=labels_of(scores)))
    code, out, _ = run(capsys, grouped, "--groups")
    assert code == 0 and out.startswith("group ") and "p > 0.9" in out and "KLD p99.9" in out
    code, out, _ = run(capsys, grouped, "--groups", "--confident", "50%", "--format", "csv")
    head, *lines = out.splitlines()
    assert head.startswith("grouped_by,group,from,to,n,share,ppl") and len(lines) > 10
    code, out, _ = run(capsys, grouped, "--confident", "0.5", "--json")
    record = json.loads(out)
    assert record["thresholds"] == {"confident": 0.5}
    assert scores.against is not None
    sure = np.exp(scores.against.base_top1_logprob) > 0.5
    flips = (scores.top1 != scores.against.base_top1)[sure].mean()
    assert record["metrics"]["confident_flips"]["value"] == pytest.approx(flips, rel=1e-12)
    # What is not asked for is as it was.
    assert read_record(tmp_path / "one")["thresholds"] == {"confident": 0.9}


def test_a_run_without_groups_says_so(folder, capsys):
    code, _, err = run(capsys, folder, "--groups")
    assert code == 2 and "was measured without --group-by" in err
    code, _, err = run(capsys, folder, "--groups", "--worst", "3")
    assert code == 2 and "each is a table of its own" in err
    code, _, err = run(capsys, folder, "--confident", "1")
    assert code == 2 and "is not a probability below 1" in err
