"""Which runs belong together."""

from typing import Any

from scoremode.report.page.gathered.sections import grouped


def record(plan: str, base: str | None = None, vocabulary: int = 12) -> dict[str, Any]:
    made: dict[str, Any] = {
        "plan": {"sha256": plan},
        "engine": {"vocabulary": vocabulary},
        "corpus": {"text": {"sha256": "t"}},
    }
    return made if base is None else made | {"reference": {"sha256": base}}


def test_one_plan_one_width_one_base():
    assert grouped([record("p", "x"), record("q", "x"), record("p", "x")]) == [[0, 2], [1]]
    assert grouped([record("p", "x"), record("p", "y")]) == [[0], [1]]
    assert grouped([record("p", "x"), record("p", "x", 13)]) == [[0], [1]]
    assert grouped([]) == []


def test_runs_without_a_base_join_where_there_is_one_base_alone():
    assert grouped([record("p"), record("p", "x"), record("p")]) == [[0, 1, 2]]
    assert grouped([record("p", "x"), record("p"), record("p", "y")]) == [[0], [1], [2]]
    assert grouped([record("p"), record("q", "x"), record("p")]) == [[0, 2], [1]]


def test_a_reference_of_the_first_records_has_no_hash():
    old = record("p") | {"reference": {"source": "base"}}
    assert grouped([old, record("p", "x")]) == [[0], [1]]
