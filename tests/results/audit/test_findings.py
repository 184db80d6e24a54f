"""Findings: counted by what became of them, in words that are safe to print."""

from scoremode.results.audit.findings import Findings, short


def test_findings_are_counted_and_kept_in_order():
    found = Findings()
    assert found.same("p", "a", 1, 1, "it has")
    assert not found.same("p", "b", "ab" * 32, "cd" * 32, "the file has")
    assert not found.judge("q", "c", ["one", "two", "three", "four", "five"])
    assert found.judge("q", "d", [], "fine")
    found.unchecked("q", "e", "there is no\x1b[31m file")
    value = found.to_json()
    assert value["counts"] == {"held": 2, "unchecked": 1, "wrong": 2}
    words = [f["words"] for f in value["findings"]]
    assert words[:2] == ["1", "the record says abababababab…, and the file has cdcdcdcdcdcd…"]
    assert words[2:4] == ["one; two; three; 2 more", "fine"]
    assert "\x1b" not in words[4] and "there is no" in words[4]


def test_long_values_are_cut():
    assert short("x" * 100) == "x" * 60 + "…" and short(4.9) == "4.9" and short("g" * 64)[-1] == "…"
