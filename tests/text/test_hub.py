"""Data sets of the hub, through a stand-in that serves them on this machine."""

import io
import json
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_hub import COMMIT, Hub, Repo, call, serve

from scoremode.errors import CorpusError
from scoremode.text.corpus import from_dataset_file
from scoremode.text.hub import _split_files

WIKITEXT = "b08601e04326c79dfdd32d625aee71d232d685c3"
TEXT_A = "696cca6b65a171b0a358a4be6732cdfdf2dd6164a32e20fd70e3c13fc4dfae83"

SCRIPT = """
import json
from hashlib import sha256
from scoremode.errors import CorpusError
from scoremode.text.hub import from_hub

results = {}
for key, (arguments, options) in json.loads(%r).items():
    try:
        corpus = from_hub(*arguments, **options)
        results[key] = corpus.to_json() | {
            "text": sha256(corpus.text("rows").encode()).hexdigest(), "first": corpus.rows[0]
        }
    except CorpusError as error:
        results[key] = {"error": str(error)}
print(json.dumps(results))
"""
CALLS: dict[str, tuple[list[str | None], dict[str, str]]] = {
    "wikitext": (["wikitext", "wikitext-2-raw-v1"], {}),
    "wikitext-full-name": (["Salesforce/wikitext", "wikitext-2-raw-v1"], {}),
    "wikitext-103": (["wikitext", "wikitext-103-raw-v1"], {}),
    "wikitext-any": (["wikitext"], {}),
    "wikitext-cyrillic": (["wikitext", "cyrillic"], {}),
    "lines": (["lab/lines"], {"split": "validation", "text_field": "story"}),
    "lines-at-commit": (
        ["lab/lines"],
        {"split": "validation", "text_field": "story", "revision": COMMIT},
    ),
    "lines-other-field": (["lab/lines"], {"split": "validation"}),
    "lines-other-revision": (["lab/lines"], {"revision": "v9"}),
    "shards": (["lab/shards"], {"revision": COMMIT}),
    "converted": (["lab/converted"], {}),
    "gap": (["lab/gap"], {}),
    "not-utf-8": (["lab/not-utf-8"], {}),
    "unknown": (["lab/unknown"], {}),
    "no-such-name": (["lab/two/many"], {}),
    "empty": (["lab/empty"], {}),
}


def parquet(rows: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": rows}), file)
    return file.getvalue()


def jsonl(rows: list[str], field: str) -> bytes:
    return "".join(json.dumps({field: row}) + "\n" for row in rows).encode()


def calls(hub: Hub, home: Path, *keys: str, offline: bool = False) -> dict[str, dict]:
    chosen = {key: CALLS[key] for key in keys or CALLS}
    return call(hub.endpoint, home, SCRIPT % json.dumps(chosen), offline=offline)


def snapshot(home: Path, repo: str, commit: str = COMMIT) -> Path:
    return home / "hub" / f"datasets--{repo.replace('/', '--')}" / "snapshots" / commit


@pytest.fixture(scope="module")
def hub(data):
    rows = list(from_dataset_file(data / "wikitext2" / "wiki.test.raw").rows)
    repos = {
        "Salesforce/wikitext": Repo(
            {
                "wikitext-2-raw-v1/test-00000-of-00001.parquet": parquet(rows),
                "wikitext-2-raw-v1/train-00000-of-00002.parquet": b"never read",
                "wikitext-103-raw-v1/test-00000-of-00001.parquet": parquet(["one", "", "two"]),
            },
            commit=WIKITEXT,
            revisions=(),
        ),
        "lab/lines": Repo({"README.md": b"", "validation.jsonl": jsonl(["a", "b", "c"], "story")}),
        "lab/shards": Repo(
            {f"data/test-{i:05}-of-00003.parquet": parquet([f"{i}a", f"{i}b"]) for i in (2, 0, 1)}
        ),
        "lab/converted": Repo(
            {"test.csv": b"text\nx\ny\n"},
            others=(
                Repo(
                    {f"default/test/000{i}.parquet": parquet([row]) for i, row in enumerate("xy")},
                    commit=COMMIT[::-1],
                    revisions=("refs/convert/parquet",),
                ),
            ),
        ),
        "lab/gap": Repo({"data/test-00000-of-00002.parquet": parquet(["x"])}),
        "lab/not-utf-8": Repo({"test.jsonl": b'{"text": "\xff"}\n'}),
        "lab/empty": Repo({"README.md": b""}),
    }
    with serve({f"datasets/{name}": repo for name, repo in repos.items()}) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hf-home")


@pytest.fixture(scope="module")
def online(hub, home):
    return calls(hub, home) | {"fetched": hub.fetched()}


@pytest.fixture(scope="module")
def offline(online, hub, home):
    """The same calls without a network, from what the first ones left in the cache."""
    before = len(hub.requests)
    results = calls(hub, home, offline=True)
    assert len(hub.requests) == before
    return results


@pytest.mark.parametrize("key", ["wikitext", "wikitext-full-name"])
def test_wikitext_is_text_a_of_the_pinned_revision(online, key):
    assert online[key]["text"] == TEXT_A
    assert online[key]["rows"] == 4358
    assert online[key]["source"] == f"hub:Salesforce/wikitext@{WIKITEXT}"


def test_only_the_split_is_downloaded_and_only_once(online):
    fetched = online["fetched"]
    assert "wikitext-2-raw-v1/test-00000-of-00001.parquet" in fetched
    assert not [name for name in fetched if "train" in name or name == "README.md"]
    assert len(fetched) == len(set(fetched))


def test_files_are_read_in_the_order_of_their_numbers(online):
    text = "\n\n".join(["0a", "0b", "1a", "1b", "2a", "2b"])
    assert online["shards"]["text"] == sha256(text.encode()).hexdigest()


def test_a_data_set_in_another_format_comes_from_the_hubs_conversion(online):
    assert online["converted"]["text"] == sha256(b"x\n\ny").hexdigest()
    assert online["converted"]["source"] == f"hub:lab/converted@{COMMIT[::-1]}"


def test_jsonl_data_set_names_its_commit(online):
    assert online["lines"]["text"] == sha256(b"a\n\nb\n\nc").hexdigest()
    assert online["lines"]["source"] == f"hub:lab/lines@{COMMIT}"


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("wikitext-any", ("wikitext-103-raw-v1, wikitext-2-raw-v1", "--dataset-config")),
        ("wikitext-cyrillic", ("wikitext cyrillic test", "no .parquet or .jsonl files")),
        ("lines-other-field", ("lab/lines/validation.jsonl", "line 1", "'text'")),
        ("lines-other-revision", ("lab/lines", "cannot be fetched", "404")),
        ("gap", ("lab/gap", "1 of its 2 files")),
        ("not-utf-8", ("lab/not-utf-8/test.jsonl", "not utf-8 at byte 10")),
        ("unknown", ("lab/unknown", "cannot be fetched", "--dataset-file")),
        ("no-such-name", ("lab/two/many", "cannot be fetched", "--dataset-file")),
        ("empty", ("lab/empty", "no .parquet or .jsonl files")),
    ],
)
def test_what_is_refused_online(online, key, parts):
    message = online[key]["error"]
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("key", ["wikitext", "wikitext-103", "lines-at-commit", "shards"])
def test_a_second_run_needs_no_network(online, offline, key):
    assert offline[key] == online[key]


@pytest.mark.parametrize("key", ["wikitext-any", "wikitext-cyrillic", "lines", "converted", "gap"])
def test_the_cache_alone_is_not_believed(offline, key):
    message = offline[key]["error"]
    assert "--dataset-file" in message or "--dataset-config" in message
    assert "\n" not in message


def test_offline_with_an_empty_cache_says_what_to_give(hub, tmp_path):
    result = calls(hub, tmp_path, "wikitext", offline=True)
    assert "--dataset-file" in result["wikitext"]["error"]
    assert "-f" in result["wikitext"]["error"].split()


def test_a_hub_that_cannot_be_reached_is_as_good_as_none(online, home, tmp_path):
    nowhere = Hub({}, endpoint="http://127.0.0.1:9")
    assert calls(nowhere, home, "wikitext") == {"wikitext": online["wikitext"]}
    assert "cannot be fetched" in calls(nowhere, tmp_path, "wikitext")["wikitext"]["error"]


def test_part_of_a_split_is_never_taken_for_all_of_it(hub, tmp_path):
    hub.broken.add("data/test-00001-of-00003.parquet")
    try:
        assert "cannot be fetched" in calls(hub, tmp_path, "shards")["shards"]["error"]
    finally:
        hub.broken.clear()
    kept = [p.name for p in snapshot(tmp_path, "lab/shards").rglob("*.parquet")]
    assert kept == ["test-00000-of-00003.parquet"]
    assert "--dataset-file" in calls(hub, tmp_path, "shards", offline=True)["shards"]["error"]
    assert calls(hub, tmp_path, "shards")["shards"]["rows"] == 6


def test_a_branch_in_the_cache_is_found_offline(hub, tmp_path):
    calls(hub, tmp_path, "lines-at-commit")
    refs = snapshot(tmp_path, "lab/lines").parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    assert calls(hub, tmp_path, "lines", offline=True)["lines"]["rows"] == 3


def test_another_configuration_in_the_cache_is_no_hindrance(hub, tmp_path):
    calls(hub, tmp_path, "wikitext-103")
    assert snapshot(tmp_path, "Salesforce/wikitext", WIKITEXT).is_dir()
    assert calls(hub, tmp_path, "wikitext")["wikitext"]["text"] == TEXT_A


@pytest.mark.parametrize(
    ("config", "names", "found"),
    [
        (None, ["test.jsonl", "train.jsonl"], ["test.jsonl"]),
        (None, ["data/test-00000-of-00001.parquet"], ["data/test-00000-of-00001.parquet"]),
        (None, ["default/test/0000.parquet"], ["default/test/0000.parquet"]),
        (None, ["en/partial-test/0000.parquet", "en/my-test.parquet"], []),
        ("en", ["en/test.parquet", "de/test.parquet"], ["en/test.parquet"]),
        ("en", ["data/en/test.jsonl", "test.jsonl"], ["data/en/test.jsonl"]),
        ("e.", ["en/test.parquet"], []),
        # The same rows in two formats are the split once.
        (None, ["test.jsonl", "test.parquet"], ["test.parquet"]),
    ],
)
def test_which_files_are_the_split(config, names, found):
    assert _split_files(names, config, "test") == found


@pytest.mark.parametrize(
    "names",
    [
        ["test.parquet", "test-00000-of-00001.parquet"],
        ["test-00000-of-00001.parquet", "test-00000-of-00002.parquet"],
    ],
)
def test_a_split_there_twice_is_refused(names):
    with pytest.raises(CorpusError, match="twice"):
        _split_files(names, None, "test")
