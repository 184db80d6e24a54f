"""The texts that protocols score, from every form a data set arrives in."""

import json
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoremode.errors import CorpusError, UsageError
from scoremode.text.corpus import (
    WIKITEXT2_RAW_SHA256,
    from_dataset_file,
    from_file,
    from_rows,
    from_string,
)

# C is the raw file less its final newline.
TEXTS = {
    "rows": (1_296_370, "696cca6b65a171b0a358a4be6732cdfdf2dd6164a32e20fd70e3c13fc4dfae83"),
    "nonblank-rows": (
        1_293_436,
        "c5b5caea5bd655cb221545a484f2f0f59d35092a17a66840d7b9513d0b99687d",
    ),
    "raw-file": (1_290_589, None),
}


@pytest.fixture(scope="module")
def raw(data) -> Path:
    return data / "wikitext2" / "wiki.test.raw"


@pytest.fixture(scope="module")
def rows(raw) -> list[str]:
    """The hub's rows, made from the file as the data set's script makes them."""
    lines = raw.read_bytes().decode().split("\n")[:-1]
    return ["" if line.isspace() else line + "\n" for line in lines]


@pytest.fixture(scope="module")
def forms(raw, rows, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wikitext")
    pq.write_table(pa.table({"text": rows, "id": range(len(rows))}), folder / "test.parquet")
    with (folder / "test.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": 1, "text": row}) + "\n" for row in rows)
    return {"raw": raw, "parquet": folder / "test.parquet", "jsonl": folder / "test.jsonl"}


@pytest.mark.parametrize("form", ["raw", "parquet", "jsonl"])
@pytest.mark.parametrize("rule", TEXTS)
def test_wikitext_is_the_same_text_in_every_form(form, rule, forms, raw):
    corpus = from_dataset_file(forms[form])
    text = corpus.text(rule).encode()
    size, digest = TEXTS[rule]
    assert len(text) == size
    assert sha256(text).hexdigest() == (digest or sha256(raw.read_bytes()[:-1]).hexdigest())
    assert corpus.name == "wikitext wikitext-2-raw-v1 test"
    assert corpus.source_sha256 == sha256(forms[form].read_bytes()).hexdigest()
    assert corpus.to_json()["rows"] == 4358


def test_the_known_hash_is_the_files(raw):
    assert sha256(raw.read_bytes()).hexdigest() == WIKITEXT2_RAW_SHA256


@pytest.mark.parametrize("form", ["raw", "parquet"])
@pytest.mark.parametrize("count", [1, 2, 10, 4358, 9999])
def test_num_samples_counts_rows_of_the_text_rule(form, count, forms, rows, raw):
    corpus = from_dataset_file(forms[form]).limited_to(count)
    filled = [row for row in rows if row.strip()]
    assert corpus.text("rows") == "\n\n".join(rows[:count])
    assert corpus.text("nonblank-rows") == "\n\n".join(filled[:count])
    assert corpus.text("raw-file") == "\n".join(raw.read_text().split("\n")[:-1][:count])
    assert corpus.to_json()["row_limit"] == count


def test_no_limit_changes_nothing(forms):
    corpus = from_dataset_file(forms["raw"])
    assert corpus.limited_to(None) is corpus


@pytest.mark.parametrize("count", [0, -1])
def test_num_samples_must_be_positive(count):
    corpus = from_rows(["a", "b"], name="two", source="here", digest="")
    with pytest.raises(UsageError, match=f"--num-samples {count}"):
        corpus.limited_to(count)


def test_num_samples_of_a_plain_text_is_refused():
    with pytest.raises(UsageError, match="--num-samples 3: text is one text"):
        from_string("abc").limited_to(3)


def test_blank_rows_are_those_of_white_space_only():
    corpus = from_rows(["a", "", " \n", "\tb"], name="rows", source="here", digest="")
    assert corpus.text("rows") == "a\n\n\n\n \n\n\n\tb"
    assert corpus.text("nonblank-rows") == "a\n\n\tb"


def test_other_rows_have_no_raw_file():
    corpus = from_rows(["a", "b"], name="two rows", source="here", digest="")
    with pytest.raises(CorpusError, match=r"two rows is a data set of rows.*-f"):
        corpus.text("raw-file")


@pytest.mark.parametrize(
    "data",
    [
        b"one\r\ntwo\r\n",
        b"\xef\xbb\xbfmarked\n",
        b"no newline",
        b"\n\n",
        b" \r\n",
        b'{"a": 1}',
        b"",
    ],
)
def test_a_text_is_taken_as_it_is(data, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    corpus = from_file(path)
    assert corpus.text("rows").encode() == corpus.text("nonblank-rows").encode() == data
    assert corpus.text("raw-file").encode() == data.removesuffix(b"\n")
    assert corpus.source_sha256 == sha256(data).hexdigest()
    assert corpus.to_json() == {
        "name": "text.txt",
        "source": str(path),
        "source_sha256": corpus.source_sha256,
        "rows": None,
        "row_limit": None,
    }


@pytest.mark.parametrize(
    "name", ["chat.jsonl", "chat.JSONL", "a.ndjson", "a.parquet", "a.json", "a.csv", "a.tsv"]
)
def test_a_data_set_is_no_text(name, tmp_path):
    path = tmp_path / name
    path.write_text('{"text": "a"}\n')
    with pytest.raises(CorpusError, match=r"is a data set.*--dataset-file and --text-field"):
        from_file(path)


@pytest.mark.parametrize("data", [b"a\0b", "ab".encode("utf-16-le"), b"\0" * 9])
def test_what_has_a_nul_byte_is_no_text(data, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=rf"text.txt: not a text: byte {data.find(0)} is NUL"):
        from_file(path)


def test_a_data_sets_suffix_may_be_in_capitals(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "A.PARQUET")
    (tmp_path / "A.JSONL").write_text('{"text": "a"}\n{"text": "b"}\n')
    for name in ("A.PARQUET", "A.JSONL"):
        assert from_dataset_file(tmp_path / name).rows == ("a", "b")


def test_jsonl_may_have_blank_lines_windows_ends_and_another_field(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"story": "a"}\r\n\r\n{"story": "\\u2028 b\u2028"}'.encode())
    assert from_dataset_file(path, "story").rows == ("a", "\u2028 b\u2028")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.txt", b"plain\n", r"rows\.txt: a data set file is .*give -f"),
        ("rows", b"plain\n", r"rows: a data set file is"),
        ("wiki.test.raw", b"not that one\n", r"wiki\.test\.raw: a data set file is"),
        ("rows.jsonl", b"", "no rows"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
        ("rows.jsonl", b'{"text": ' + 9999 * b"9" + b"}", "line 1 is not JSON"),
        ("rows.jsonl", 200_000 * b"[", "line 1 is not JSON"),
        ("rows.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "line 2 has no field 'text'"),
        ("rows.jsonl", b'["text"]\n', "line 1 has no field 'text'"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": null}\n', "row 1 is NoneType"),
        ("rows.jsonl", b'{"text": 7}\n', "row 0 is int"),
        ("rows.jsonl", b'{"text": "\\ud83d"}\n', "row 0: not Unicode text at character 0"),
        ("rows.jsonl", b'{"text": "\xff"}\n', "not utf-8 at byte 10"),
        ("rows.parquet", b"", "not a readable Parquet file"),
        ("rows.parquet", b"PAR1 no more PAR1", "not a readable Parquet file"),
    ],
)
def test_a_bad_data_set_is_named_in_one_line(name, content, said, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=said) as refused:
        from_dataset_file(path)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"body": ["a"], "id": [1]}), "no column 'text': it has body, id"),
        (pa.table({"text": [1, 2]}), "row 0 is int"),
        (pa.table({"text": ["a", None]}), "row 1 is NoneType"),
        (pa.table({"text": [["a"]]}), "row 0 is list"),
        (pa.table({"text": [b"a"]}), "row 0 is bytes"),
        (pa.table({"text": pa.array([b"\xff"]).view(pa.string())}), "not a readable"),
        (pa.table({"text": pa.array([], pa.string())}), "no rows"),
    ],
)
def test_a_parquet_file_without_texts(table, said, tmp_path):
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(CorpusError, match=said):
        from_dataset_file(tmp_path / "rows.parquet")


def test_a_damaged_parquet_file(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [str(i) for i in range(5000)]}), path)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"rows\.parquet: not a readable Parquet file"):
        from_dataset_file(path)


@pytest.mark.parametrize("read", [from_file, from_dataset_file])
def test_a_path_that_cannot_be_read(read, tmp_path):
    with pytest.raises(CorpusError, match=r"missing: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(CorpusError, match="is a folder, not a file"):
        read(tmp_path)


def test_a_text_that_is_not_utf_8(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.txt: not utf-8 at byte 3"):
        from_file(tmp_path / "latin.txt")


def test_a_given_text_is_itself():
    corpus = from_string("Once.\n")
    assert corpus.text("rows") == "Once.\n"
    assert corpus.text("raw-file") == "Once."
    assert corpus.source_sha256 == sha256(b"Once.\n").hexdigest()


def test_a_given_text_that_the_shell_could_not_decode():
    with pytest.raises(CorpusError, match="not Unicode text at character 3"):
        from_string(b"caf\xe9".decode(errors="surrogateescape"))


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("a\nb", ()),
        ("\ufeffa\r\nb", ("1 byte order mark (U+FEFF)", "1 Windows line end (CRLF)")),
        ("\ufeffa\ufeff", ("2 byte order marks (U+FEFF)",)),
        ("a\r\n" * 1200 + "\r", ("1,200 Windows line ends (CRLF)",)),
    ],
)
def test_what_editors_and_git_add_is_counted(text, notes, tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(text.encode())
    found = from_file(path).notes
    assert [note.split(", scored like")[0] for note in found] == [
        f"{path}: its text has {said}" for said in notes
    ]
