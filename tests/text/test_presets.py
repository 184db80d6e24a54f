"""Named texts, from a local copy and from a stand-in for the hub."""

import gzip
import io
import json
import re
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_hub import Repo, call, serve

from scoremode.errors import CorpusError, UsageError
from scoremode.text import presets
from scoremode.text.conversations.corpus import BadRow, Conversations
from scoremode.text.conversations.messages import Conversation
from scoremode.text.corpus import from_dataset_file
from scoremode.text.presets import TEXTS, load_text, named_text

# As SparseGPT's datautils.py cuts C4, whose text GPTQ's papers measure: ' '.join(rows[:1100]).
C4_ROWS = [f"Document {i}:\n its words.\n" for i in range(1300)]
C4 = gzip.compress(
    "".join(json.dumps({"text": row, "url": "u"}) + "\n" for row in C4_ROWS).encode(), mtime=0
)
CODE = [f"def f{i}():\n    pass" for i in range(500)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {i}?"},
            {"role": "assistant", "content": f"It is {i}."},
        ],
        "source": "ab"[i % 2],
    }
    for i in range(600)
]
SCRIPT = """
import json
from scoremode.errors import CorpusError
from scoremode.text.presets import load_text, named_text

results = {}
for name, revision in json.loads(%r):
    try:
        found = load_text(named_text(name), revision=revision)
        rows = [c.where for c in found.chats] if name == "smoltalk" else list(found.rows)
        results[name] = found.to_json() | {"texts": rows, "labels": found.labels}
    except CorpusError as error:
        results[name] = {"error": str(error)}
print(json.dumps(results))
"""


def table(**columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def hub(data):
    """The named texts' repositories at their revisions, with rows of our own but for WikiText-2's."""
    rows = list(from_dataset_file(data / "wikitext2" / "wiki.test.raw").rows)
    columns = {name: [chat[name] for chat in CHATS] for name in CHATS[0]}
    flores = {
        file: f'{{"text": "{file}", "iso_639_3": "{file[8:11]}"}}\n'.encode() * 1012
        for file in TEXTS["flores"].files
    }
    files = {
        "wikitext-2": {TEXTS["wikitext-2"].files[0]: table(text=rows)},
        "c4-gptq": {
            TEXTS["c4-gptq"].files[0]: C4,
            "en/c4-validation.00001-of-00008.json.gz": b"no",
        },
        "mbpp": {TEXTS["mbpp"].files[0]: table(text=["task"] * 500, code=CODE)},
        "flores": flores | {"devtest/deu_Latn.jsonl": b"never read"},
        "smoltalk": {TEXTS["smoltalk"].files[0]: table(**columns)},
    }
    repos = {
        f"datasets/{TEXTS[name].repo}": Repo(held, commit=TEXTS[name].revision, revisions=())
        for name, held in files.items()
    }
    repos[f"datasets/{TEXTS['wikitext-2'].repo}"].files |= {
        TEXTS["wikitext-103-1"].files[0]: table(text=["not the real one"])
    }
    with serve(repos) as running:
        yield running


@pytest.fixture(scope="module")
def found(hub, tmp_path_factory):
    home = tmp_path_factory.mktemp("hf-home")
    wanted = json.dumps([(name, None) for name in TEXTS])
    online = call(hub.endpoint, home, SCRIPT % wanted)
    before = len(hub.requests)
    again = call(hub.endpoint, home, SCRIPT % wanted, offline=True)
    assert len(hub.requests) == before
    return online, again, hub.fetched()


@pytest.mark.parametrize("name", TEXTS)
def test_a_definition_is_whole(name):
    text = TEXTS[name]
    assert text.name == name and text.what and text.licence and text.files
    assert re.fullmatch(r"[0-9a-f]{40}", text.revision)
    for known in (text.file_sha256, text.rows_sha256):
        assert known is None or re.fullmatch(r"[0-9a-f]{64}", known)
    assert text.file_sha256 is None or len(text.files) == 1


def test_c4_is_cut_as_gptq_papers_cut_it(found, tmp_path):
    (tmp_path / "copy.json.gz").write_bytes(C4)
    local = load_text(named_text("c4-gptq"), file=tmp_path / "copy.json.gz")
    assert local.text("rows") == " ".join(C4_ROWS[:1100])
    assert local.to_json() == {
        "name": "c4-gptq",
        "source": str(tmp_path / "copy.json.gz"),
        "source_sha256": sha256(C4).hexdigest(),
        "rows": 1100,
        "row_limit": None,
        "preset": "c4-gptq",
        "separator": " ",
    }
    assert found[0]["c4-gptq"]["texts"] == C4_ROWS[:1100]
    assert local.limited_to(3).text("rows") == " ".join(C4_ROWS[:3])


def test_the_hub_s_files_are_read_at_the_revision_and_no_others(found):
    online, again, fetched = found
    for name, one in online.items():
        text = TEXTS[name]
        if name.startswith("wikitext-103"):
            continue
        assert one["source"] == f"hub:{text.repo}@{text.revision}"
        assert (one["preset"], one["separator"]) == (name, text.separator)
        assert again[name] == one
        assert set(text.files) <= set(fetched)
    assert "devtest/deu_Latn.jsonl" not in fetched
    assert (
        online["flores"]["labels"][:2] == ["ara", "cmn"] or online["flores"]["labels"][0] == "arb"
    )
    assert online["flores"]["texts"] == [f for f in TEXTS["flores"].files for _ in range(1012)]
    assert online["mbpp"]["texts"] == CODE
    assert online["smoltalk"]["rows"] == 512 and online["smoltalk"]["group_by"] == "source"
    assert online["smoltalk"]["texts"][:2] == ["smoltalk, row 0", "smoltalk, row 1"]


def test_a_file_that_is_not_the_pinned_one_is_refused(found):
    online = found[0]
    assert "is not the text wikitext-103-1: its sha256 is" in online["wikitext-103-1"]["error"]
    assert "has no wikitext-103-raw-v1/train-00001-of-00002" in online["wikitext-103-2"]["error"]


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("c4-gptq", 1099, "it has 1,099 rows, and the text is of 1,100"),
        ("smoltalk", 511, "it has 511 rows, and the text is of 512"),
        ("mbpp", 499, "it has 499 rows, and the text 500"),
        ("mbpp", 501, "it has 501 rows, and the text 500"),
        ("flores", 1012, "it has 1,012 rows, and the text 10,120"),
    ],
)
def test_a_copy_of_another_number_of_rows_is_refused(name, rows, words, tmp_path):
    row = {"text": "t", "code": "c", "iso_639_3": "eng", **CHATS[0]}
    (tmp_path / "x.jsonl").write_text((json.dumps(row) + "\n") * rows)
    with pytest.raises(CorpusError, match=f"is not the text {name}: {words}$"):
        load_text(named_text(name), file=tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["c4-gptq", "mbpp"])
def test_a_text_that_is_known_as_another_is_refused(name, data, tmp_path, monkeypatch):
    with pytest.raises(CorpusError, match=f"not the text {name}: its rows are WikiText-2's"):
        load_text(named_text(name), file=data / "wikitext2" / "wiki.test.raw")
    held = table(text=["t"] * 1200, code=["c"] * 1200)
    (tmp_path / "x.parquet").write_bytes(held)
    known = presets._wikitext_103(2, sha256(held).hexdigest())
    monkeypatch.setattr(presets, "TEXTS", {**TEXTS, known.name: known})
    with pytest.raises(CorpusError, match=f"not the text {name}: it is the file of {known.name}"):
        load_text(named_text(name), file=tmp_path / "x.parquet")


def test_wikitext_2_is_the_text_of_a_run_that_names_none(data, found, tmp_path):
    file = data / "wikitext2" / "wiki.test.raw"
    usual, named = from_dataset_file(file), load_text(named_text("wikitext-2"), file=file)
    assert usual.name == named.name and usual.rows == named.rows
    assert list(named.rows) == found[0]["wikitext-2"]["texts"]
    for rule in ("rows", "nonblank-rows", "raw-file"):
        assert usual.text(rule) == named.text(rule)
    (tmp_path / "x.parquet").write_bytes(table(text=[*usual.rows[:-1], "other"]))
    with pytest.raises(CorpusError, match="is not the text wikitext-2: its rows' sha256 is"):
        load_text(named_text("wikitext-2"), file=tmp_path / "x.parquet")


def test_a_pinned_file_is_taken_by_its_hash(monkeypatch, tmp_path):
    data = table(text=[f"row {i}" for i in range(10_050)])
    digest = sha256(data).hexdigest()
    text = presets._wikitext_103(1, digest)
    (tmp_path / "x.parquet").write_bytes(data)
    found = load_text(text, file=tmp_path / "x.parquet")
    assert len(found.rows) == 10_000 and found.rows[-1] == "row 9999"
    assert found.source_sha256 == digest


def test_groups_are_those_of_the_rows_that_are_left(tmp_path):
    rows = [{"text": f"t{i}", "url": "ab"[i % 2]} for i in range(1200)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_text(named_text("c4-gptq"), file=tmp_path / "x.jsonl", group_by="url")
    assert len(found.labels) == len(found.rows) == 1100
    text = found.text("rows")
    for at, label in found.row_labels("rows")[:30]:
        assert text[at] == "t" and label == "ab"[int(text[at + 1 :].split()[0]) % 2]


def test_conversations_are_called_by_the_text_s_name(tmp_path):
    rows = [{"messages": []}, *CHATS]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_text(named_text("smoltalk"), file=tmp_path / "x.jsonl", how={"skip_bad_rows": 1})
    assert isinstance(found, Conversations) and len(found.chats) == 512 and found.skip_bad_rows == 1
    bad, first = found.chats[:2]
    assert isinstance(bad, BadRow) and bad.line.startswith("smoltalk, line 1: ")
    assert isinstance(first, Conversation) and first.where == "smoltalk, line 2"
    assert found.limited_to(5, 1).to_json()["rows"] == 512


def test_a_name_that_no_text_has():
    with pytest.raises(UsageError, match="--preset c4: no text has that name: one of wikitext-2, "):
        named_text("c4")


def test_without_a_network_a_local_copy_is_asked_for_by_the_flag_that_takes_it(hub, tmp_path):
    wanted = json.dumps([(name, None) for name in ("smoltalk", "c4-gptq")])
    made = call(hub.endpoint, tmp_path / "home", SCRIPT % wanted, offline=True)
    for found in made.values():
        assert found["error"].endswith("; give a local copy with --dataset-file")
