"""Rows of files, and those that a seed draws."""

import gzip
import io
import json
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoremode.errors import CorpusError, UsageError
from scoremode.text import rows as rows_module
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.conversations.messages import Conversation
from scoremode.text.corpus import from_dataset_file
from scoremode.text.rows import drawn_rows, read_rows, row_names


def lines(count):
    return "".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(count)).encode()


def by_hand(rows, count, seed):
    """Independent of the package: the smallest hashes of `seed:row`, in the rows' order."""
    hashed = {sha256(b"%d:%d" % (seed, row)).hexdigest(): row for row in rows}
    return sorted(hashed[h] for h in sorted(hashed)[:count])


@pytest.mark.parametrize("seed", [0, 1, 7, 10**12])
@pytest.mark.parametrize("count", [1, 5, 40, 99])
def test_a_seed_draws_the_smallest_hashes(seed, count):
    rows = [row for row in range(60) if row % 3]
    drawn = drawn_rows(rows, count, seed)
    assert drawn == by_hand(rows, count, seed) == sorted(set(drawn))
    assert len(drawn) == min(count, 40)
    # More rows have those of fewer among them.
    assert set(drawn) <= set(drawn_rows(rows, count + 1, seed))


def test_the_draw_is_the_same_in_every_release():
    assert drawn_rows(range(1000), 5, 3) == [313, 478, 526, 668, 721]
    assert by_hand(range(1000), 5, 3) == [313, 478, 526, 668, 721]
    assert drawn_rows([], 3, 0) == []


def test_packed_rows_are_those_of_the_plain_file(tmp_path):
    data = lines(9)
    for name in ("x.jsonl", "x.jsonl.gz", "x.json.gz", "x.ndjson.gz"):
        held = gzip.compress(data) if name.endswith("gz") else data
        assert read_rows(held, name, "text") == [f"row {i}" for i in range(9)]
        assert row_names(held, name, 9)[0] == f"{name}, line 1"
        (tmp_path / name).write_bytes(held)
        corpus = from_dataset_file(tmp_path / name)
        assert corpus.rows[8] == "row 8" and corpus.source_sha256 == sha256(held).hexdigest()
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(data))
    with pytest.raises(CorpusError, match=r"x\.txt\.gz: a data set file is \.jsonl"):
        from_dataset_file(tmp_path / "x.txt.gz")


def test_a_text_is_made_of_the_rows_drawn(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(lines(50))
    corpus = from_dataset_file(tmp_path / "x.jsonl")
    drawn = corpus.limited_to(6, 4)
    wanted = "\n\n".join(f"row {i}" for i in by_hand(range(50), 6, 4))
    assert drawn.text("rows") == drawn.text("nonblank-rows") == wanted
    assert drawn.to_json()["row_seed"] == 4 and drawn.to_json()["rows"] == 50
    assert "row_seed" not in corpus.limited_to(6).to_json()
    assert corpus.limited_to(50, 4).text("rows") == corpus.text("rows")
    with pytest.raises(UsageError, match="--num-samples 0"):
        corpus.limited_to(0, 4)


def test_blank_rows_are_not_drawn_where_they_are_dropped(tmp_path):
    rows = [{"text": "" if i % 2 else f"row {i}"} for i in range(40)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = from_dataset_file(tmp_path / "x.jsonl").limited_to(5, 2)
    wanted = [f"row {i}" for i in by_hand(range(0, 40, 2), 5, 2)]
    assert drawn.text("nonblank-rows").split("\n\n") == wanted


def test_groups_of_drawn_rows_are_their_own(tmp_path):
    rows = [{"text": "x" * (i + 1), "of": f"g{i}"} for i in range(30)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = from_dataset_file(tmp_path / "x.jsonl", group_by="of").limited_to(4, 9)
    text = drawn.text("rows")
    for (at, label), row in zip(drawn.row_labels("rows"), by_hand(range(30), 4, 9), strict=True):
        assert label == f"g{row}" and text[at:].startswith("x" * (row + 1))


def test_conversations_are_drawn_alike(tmp_path):
    rows = [{"prompt": "a ", "completion": f"b{i}"} for i in range(30)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = from_conversations_file(tmp_path / "x.jsonl").limited_to(4, 9)
    said = [chat.text for chat in drawn.chats if isinstance(chat, Conversation)]
    assert said == [("a ", f"b{i}") for i in by_hand(range(30), 4, 9)]
    made = drawn.to_json()
    assert (made["rows"], made["row_limit"], made["row_seed"]) == (30, 4, 9)
    first = from_conversations_file(tmp_path / "x.jsonl").limited_to(4)
    assert len(first.chats) == 4 and first.to_json()["rows"] == 30


def parquet(table: pa.Table, **how) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **how)
    return file.getvalue()


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("field", ["text", None])
def test_a_small_parquet_file_may_not_unpack_to_a_large_one(field, stored, monkeypatch):
    # One text of 10,000 bytes that the file has once, in all of 300 rows.
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 300), pa.array(["x" * 10_000]))
    data = parquet(pa.table({"text": once}), store_schema=stored)
    assert len(data) < 20_000
    assert len(read_rows(data, "x.parquet", field)) == 300
    monkeypatch.setattr(rows_module, "MOST_TEXT", 2 << 20)
    with pytest.raises(CorpusError, match=r"^x\.parquet: unpacks to more than 2 MiB$"):
        read_rows(data, "x.parquet", field)


def test_rows_of_parquet_are_read_whatever_they_are_stored_as():
    texts = [f"row {i}" for i in range(500)]
    packed = pa.dictionary(pa.int32(), pa.string())
    for kind in (pa.string(), pa.large_string(), pa.string_view(), packed):
        data = parquet(
            pa.table({"a.b": pa.array(texts, kind), "n": range(500)}), row_group_size=130
        )
        assert read_rows(data, "x.parquet", "a.b") == texts
        assert read_rows(data, "x.parquet", None)[499] == {"a.b": "row 499", "n": 499}


def test_of_two_columns_of_a_name_none_is_the_text():
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(CorpusError, match=r"x\.parquet: several columns 'text': it has text, text"):
        read_rows(parquet(table), "x.parquet", "text")


def test_times_that_python_has_no_date_for_are_named():
    table = pa.table({"text": ["a"], "at": pa.array([2**62], pa.timestamp("us"))})
    assert read_rows(parquet(table), "x.parquet", "text") == ["a"]
    with pytest.raises(CorpusError, match=r"x\.parquet: not a readable Parquet file: "):
        read_rows(parquet(table), "x.parquet", None)


def test_a_mark_before_the_first_line_is_no_part_of_it():
    """As PowerShell's Out-File and Excel write JSON lines."""
    data = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "\xef\xbb\xbfb"}'
    assert read_rows(data, "x.jsonl", "text") == ["a", "\ufeffb"]
    assert row_names(data, "x.jsonl", 2) == ["x.jsonl, line 1", "x.jsonl, line 3"]
