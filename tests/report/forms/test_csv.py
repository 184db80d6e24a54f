"""A table as CSV, read again by another library."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.document import Column, Said, Table, interval, measured, number, words

KLD = {"value": 0.1 + 0.2, "ci95": (1e-17, 2 / 3)}
TABLE = Table(
    (
        words("model", "model"),
        measured("KLD", "kld_nats", ".2g"),
        interval(".2g"),
        number("bits", "bits", ".1f"),
        Column(None, "is_base"),
    ),
    (('a "b", c\n|', KLD, KLD["ci95"], 4.0625, False), ("d", None, None, Said("base"), True)),
)


def test_every_number_comes_back_as_it_was():
    text = table_csv(TABLE)
    read = pa.csv.read_csv(io.BytesIO(text.encode())).to_pydict()
    assert list(read) == ["model", "kld_nats", "kld_nats_low", "kld_nats_high", "bits", "is_base"]
    assert read["model"] == ['a "b", c\\n|', "d"]
    assert read["kld_nats"] == [KLD["value"], None] and read["kld_nats_high"] == [2 / 3, None]
    assert read["kld_nats_low"] == [1e-17, None] and read["bits"] == [4.0625, None]
    assert read["is_base"] == [0, 1]


def test_a_numpy_number_is_a_number():
    table = Table((number("x", "x", ".1f"),), ((np.float64(0.1),),))
    assert table_csv(table) == "x\n0.1\n"


def test_no_text_of_a_model_is_a_formula_in_a_spreadsheet():
    table = Table(
        (words("model", "model"), number("change", "change", ".1f")),
        tuple((name, -1.5) for name in ("=1+1", "+x", "-y", "@z", "a=b")),
    )
    lines = table_csv(table).splitlines()[1:]
    assert lines == ["'=1+1,-1.5", "'+x,-1.5", "'-y,-1.5", "'@z,-1.5", "a=b,-1.5"]
