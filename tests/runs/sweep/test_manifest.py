"""A sweep's manifest: whole, sealed, and refused where it is not what was written."""

import json
import shlex

import pytest
from support.hostile_files import KINDS, put, snapshot

from scoremode.errors import RunFolderError
from scoremode.results.folders.paths import MANIFEST
from scoremode.runs.sweep.manifest import (
    SCHEMA,
    SCHEMA_VERSION,
    held,
    placed,
    read_manifest,
    unfinished,
    write_manifest,
)

ENTRY = {
    "model": "q",
    "pair": 0,
    "status": "done",
    "folder": "run",
    "error": None,
    "asked": "a0",
}


@pytest.fixture
def manifest(tmp_path):
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": "2026-11-23T00:00:00Z",
        "updated": "2026-11-23T00:00:00Z",
        "command": ["scoremode", "kld", "q 1"],
        "base": "base",
        "revision": None,
        "models": ["q"],
        "pairs": [],
        "entries": [dict(ENTRY)],
        "sha256": "",
    }
    write_manifest(tmp_path, value)  # pyright: ignore[reportArgumentType]
    return value


def test_it_is_read_as_it_was_written(manifest, tmp_path):
    assert read_manifest(tmp_path) == manifest and len(manifest["sha256"]) == 64
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST]
    assert read_manifest(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base": "another"}, "changed after"),
        ({"entries": [ENTRY | {"kld": 0.1}]}, "changed after"),
        ({"schema": "scoremode.record"}, "no sweep's manifest"),
        ({"schema_version": 2}, "version 2"),
        ({"entries": None}, "no sweep's manifest"),
    ],
)
def test_one_that_was_changed_is_refused(change, words, manifest, tmp_path):
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(RunFolderError, match=words):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_manifest_is_refused(text, tmp_path):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(RunFolderError, match=MANIFEST):
        read_manifest(tmp_path)


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    with held(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
        with pytest.raises(RunFolderError, match="another sweep"), held(tmp_path / "new"):
            pass
    with held(tmp_path / "new"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be a sweep's folder"), held(tmp_path / "file"):
        pass


def test_places_inside_are_relative_and_others_absolute(tmp_path):
    assert placed(tmp_path, tmp_path / "a" / "b") == "a/b"
    other = placed(tmp_path / "a", tmp_path / "b")
    assert other == str((tmp_path / "b").resolve())
    assert tmp_path / "a" / other == tmp_path.resolve() / "b"


def test_models_without_a_run_are_told_with_the_reason(manifest, tmp_path):
    pair = {"corpus": "text", "protocol": "disjoint", "protocol_sha256": "p", "reference": None}
    left = {"status": "waiting", "folder": None}
    failed = {"status": "failed", "folder": None, "error": "q2: is broken"}
    entries = [ENTRY, ENTRY | left | {"model": "q1"}, ENTRY | failed | {"model": "q2"}]
    write_manifest(tmp_path, manifest | {"pairs": [pair], "entries": entries})
    with held(tmp_path):
        found = unfinished(tmp_path)
    assert found is not None
    one, two = found
    assert (one["model"], one["state"], one["problem"]) == ("q1", "waiting", None)
    assert (two["model"], two["state"], two["problem"]) == ("q2", "failed", "q2: is broken")
    assert (one["protocol"], one["text"], one["reference"]) == ("disjoint", "text", "base")
    killed = unfinished(tmp_path)
    assert killed is not None
    ended, command = "was ended with models left", shlex.join(manifest["command"])
    assert [(each["problem"], each["resume"]) for each in killed] == [
        (ended, command),
        ("q2: is broken", None),
    ]
    assert unfinished(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_read_in_its_place(kind, manifest, tmp_path):
    write_manifest(tmp_path, manifest)
    put(tmp_path / MANIFEST, kind, tmp_path / "outside")
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match=f"{MANIFEST}: not readable: (is|has) "):
        read_manifest(tmp_path)
    assert snapshot(tmp_path) == before
