"""A document as a terminal shows it."""

from scoremode.report.forms.document import (
    Column,
    Document,
    Facts,
    Preformatted,
    Prose,
    Said,
    Table,
    data,
    number,
)
from scoremode.report.forms.text import document_text, table_text

TABLE = Table(
    (Column("model", "model"), data("n"), number("PPL", "ppl", ".2f")),
    (("a", 7, 12.345), ("longer", 8, None), ("c", 9, Said("base"))),
)


def test_a_table_has_its_headings_alone_and_a_sign_for_nothing():
    assert table_text(TABLE).splitlines() == [
        "model     PPL",
        "-------------",
        f"a       {12.345:.2f}",
        "longer      -",
        "c        base",
    ]


def test_parts_follow_each_other():
    parts = (Facts((("a", "1"), ("bc", "2"))), TABLE, Prose("words"), Preformatted("  x"))
    text = document_text(Document(parts, TABLE))
    assert text == f"a   1\nbc  2\n\n{table_text(TABLE)}\n\nwords\n\n  x"
