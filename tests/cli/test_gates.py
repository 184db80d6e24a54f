"""Gates from flags, and the exit code that a missed one has."""

import pytest
from support import specs
from support.junit import read_junit
from support.programs import run

from scoremode.cli.command import exit_code_of, gates_of
from scoremode.errors import UsageError
from scoremode.results.gates import Gate
from scoremode.spec.run import Gates


def test_a_gates_bound_without_a_gate_is_refused(demo, capsys):
    code, out, err = run(
        capsys, "kld", str(demo / "model"), "--reference", "no/base", "--gate-on", "upper"
    )
    assert (code, out) == (2, "") and err.startswith(
        "scoremode: error: --gate-on upper: there is no"
    )


def given(*flags: str) -> Gates:
    return specs.given(Gates, *flags)


@pytest.mark.parametrize(
    ("text", "share"), [("99.9%", 0.999), ("90 %", 0.9), ("0.9", 0.9), ("1", 1.0), ("7.1%", 0.071)]
)
def test_a_share_may_be_in_percent_and_is_the_decimal_that_is_meant(text, share):
    gates = gates_of(given("--min-top1", text))
    assert gates.min_top1 == share and gates.typed == {"min_top1": text}


def test_limits_are_those_that_are_given():
    gates = gates_of(given("--max-kld", "5e-2", "--max-ppl-ratio", "1.02", "--gate-on", "upper"))
    assert (gates.max_kld, gates.max_ppl_ratio, gates.on) == (0.05, 1.02, "upper")
    assert gates.max_kld_p99 is gates.min_top1 is None
    assert not gates_of(given())


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--max-kld", "5%", "5%: a KLD is in nats, and has no percent"),
        ("--max-ppl-ratio", "101% ", "a ratio is a number such as 1.02, not a percentage"),
        ("--max-kld-p99", "some", "'some' is not a number of nats such as 0.05"),
        ("--min-top1", "9%0", "'9%0' is not a share such as 0.9 or 90%"),
    ],
)
def test_what_is_no_limit(flag, value, words):
    with pytest.raises(UsageError, match=f"{flag}: .*{words}"):
        given(flag, value)


def test_a_missed_gate_is_said_and_is_exit_code_4(capsys):
    met, missed = (
        Gate("max_kld", "the mean KLD", limit, 0.02, "value", 0.02, limit > 0.02)
        for limit in (0.03, 0.01)
    )
    assert exit_code_of([met]) == 0 and capsys.readouterr().err == ""
    assert exit_code_of([met, missed]) == 4
    assert capsys.readouterr().err == (
        "scoremode: gate not met: --max-kld 0.01: the mean KLD is 0.02\n"
    )


@pytest.mark.parametrize(("on", "code"), [("value", 0), ("upper", 4)])
def test_a_text_too_short_for_an_interval_is_told_of_before_the_run(
    on, code, demo, tmp_path, capsys
):
    model = str(demo / "model")
    found, out, err = run(
        capsys, "kld", model, "--reference", model, "-f", str(demo / "heldout.txt"), "-c", "64",
        "--limit", "4", "--protocol", "disjoint", "--device", "cpu", "-o", str(tmp_path),
        "--max-kld", "1", "--gate-on", on,
    )  # fmt: skip
    few = "scoremode: these windows give no interval and no test (1 block of 1,024 tokens: "
    lines = err.splitlines()
    assert found == code and lines[0].startswith(few) and lines[0].endswith("--limit 128 would")
    if on == "upper":
        assert lines[1].startswith("scoremode: --gate-on upper: no interval, so no upper end")
        assert lines[2].startswith("scoremode: gate not met: --max-kld 1: ") and len(lines) == 4
        assert lines[3].startswith("scoremode: no interval: nothing was judged; the text is too")
    else:
        assert lines[1:] == [] and "met, by a value without an interval (252 targets)" in out


def test_a_missed_gate_names_its_model_and_what_was_judged_is_told_from_what_was_not(capsys):
    few, held = (
        Gate("max_kld", "the mean KLD", 0.03, 0.02, "upper", ends and 0.02, bool(ends), "few", ends)
        for ends in (None, (0.01, 0.02))
    )
    assert exit_code_of([few, few], ["a", "b"]) == 4
    *missed, last = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in missed] == [" a", " b"]
    assert last.startswith("scoremode: no interval: nothing was judged; ")
    assert exit_code_of([held, few], ["a", "b"]) == 4
    assert "nothing was judged" not in capsys.readouterr().err


def test_a_plan_says_whether_its_windows_give_intervals(demo, capsys):
    flags = ["plan", str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "64",
             "--protocol", "disjoint"]  # fmt: skip
    rows = {limit: run(capsys, *flags, "--limit", limit)[1] for limit in ("4", "160")}
    assert "these windows give no interval and no test (1 block" in " ".join(rows["4"].split())
    assert "intervals      from at most 10 blocks of at least 1,024 tokens" in rows["160"]


def test_gates_are_written_as_junit_by_what_measures_and_by_what_reads(demo, tmp_path, capsys):
    model, file = str(demo / "model"), tmp_path / "junit.xml"
    gates = "--max-kld", "1", "--min-top1", "100%", "--max-ppl-ratio", "0.5", "--junit", str(file)
    code, _, err = run(
        capsys, "kld", model, "--reference", model, "-f", str(demo / "heldout.txt"), "-c", "64",
        "--limit", "4", "--protocol", "disjoint", "--device", "cpu", "-o", str(tmp_path / "runs"),
        *gates,
    )  # fmt: skip
    assert code == 4, err
    found = read_junit(file.read_text())
    outcomes = [(name, outcome) for _, name, outcome, _ in found]
    assert outcomes == [
        ("--max-kld 1", "passed"),
        ("--max-ppl-ratio 0.5", "failure"),
        ("--min-top1 100%", "passed"),
    ]
    assert found[1][3].startswith("gate not met: --max-ppl-ratio 0.5: PPL / base is 1")
    (folder,) = (tmp_path / "runs").iterdir()
    file.unlink()
    assert run(capsys, "show", str(folder), *gates)[0] == 4
    assert read_junit(file.read_text()) == found


def test_several_models_gates_are_one_junit_file_with_what_failed(demo, tmp_path, capsys):
    model, file = str(demo / "model"), tmp_path / "junit.xml"
    code, _, err = run(
        capsys, "kld", model, str(tmp_path / "none"), "--reference", model, "-c", "64",
        "-f", str(demo / "heldout.txt"), "--limit", "4", "--protocol", "disjoint", "--device", "cpu",
        "-o", str(tmp_path / "runs"), "--max-kld", "1", "--junit", str(file),
    )  # fmt: skip
    assert code == 1, err
    gate, failed = read_junit(file.read_text())
    assert gate[1:3] == ("--max-kld 1", "passed")
    assert failed[0] == str(tmp_path / "none") and failed[1:3] == ("measured", "error")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--junit", "a.xml"), "--junit a.xml: there is no gate, such as --max-kld 0.05"),
        (("--max-kld", "1", "--junit", "no/a.xml"), "--junit no/a.xml: there is no such folder"),
        (("--max-kld", "1", "--junit", "a.xml", "--shard", "1/2"), "is judged when it is merged"),
    ],
)
def test_a_junit_file_that_would_say_nothing_is_refused_first(words, message, demo, capsys):
    model = str(demo / "model")
    code, out, err = run(capsys, "kld", model, "--reference", "no/base", *words)
    assert (code, out) == (2, "") and message in err
