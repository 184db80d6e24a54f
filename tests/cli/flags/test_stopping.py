"""--stop-when and --seed as a user types them."""

import json

import pytest
from support.programs import run


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
    assert code == 2 and out == "" and words in err and err.count("\n") == 1


def test_a_run_says_where_it_ended_and_what_all_would_give(short, capsys):
    code, out, err = run(capsys, *short, "--stop-when", "ppl +-30%", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["protocol"]["name"] == "disjoint+context-length=32+stop-when=ppl±30%+seed=0"
    assert record["stopping"]["after"] < record["stopping"]["of"]
    code, out, err = run(capsys, *short, "--stop-when", "ppl ±30 %", "--resume")
    assert code == 0 and "already finished" in err
    after, of = record["stopping"]["after"], record["stopping"]["of"]
    assert f"by ppl±30% after {after} of {of} windows, drawn with seed 0: all would give PPL" in out


def test_a_reference_takes_none(short, capsys):
    code, _, err = run(capsys, "reference", *short[1:-1], "elsewhere", "--stop-when", "ppl ±1%")
    assert code == 2 and "a reference has all windows" in err
