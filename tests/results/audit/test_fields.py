"""Classes of a record's fields: each section's, and what is listed of a record."""

from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from scoremode.results.audit.findings import HELD, Findings, class_of, not_checked, short
from scoremode.results.record.definition import SECTIONS


def inner(kind: Any, key: str) -> list[Any]:
    """The types that a key of a value of `kind` may have; any object has any key."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, UnionType):
        return [found for each in get_args(kind) for found in inner(each, key)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        named = {f.encode_name: hints[f.name] for f in msgspec.structs.fields(kind)}
        return [named[key]] if key in named else []
    if get_origin(kind) is list:
        return inner(get_args(kind)[0], key)
    return [get_args(kind)[1]] if get_origin(kind) is dict else []


def test_each_section_of_the_definition_has_a_class():
    assert {name for name in HELD if "." not in name} >= SECTIONS.keys()


def test_each_field_of_a_class_is_one_of_the_definition():
    # An engine notes more of itself than the definition names, and so do these.
    free = (
        "status",
        "engine",
        "corpus",
        "tokenizer",
        "identity",
        "calibration",
        "reference",
        "gates",
    )
    for field in HELD:
        section, *keys = field.replace("stored.", "reference.").split(".")
        kinds = [] if section == "status" else [SECTIONS[section]]
        for key in keys:
            kinds = [found for kind in kinds for found in inner(kind, key)]
        assert kinds or section in free, field


def test_what_is_new_within_what_is_not_checked_or_new_altogether_is_not_checked():
    assert class_of("engine.new") == class_of("new.section") == "not checked"
    assert class_of("identity.engine.dtype") == class_of("engine.dtype") == "second run"
    assert class_of("reference.engine.dtype", is_stored=True) == "files"
    assert class_of("reference.engine.seconds.load", is_stored=True) == "not checked"


def test_a_section_is_listed_whole_where_nothing_within_is_held():
    record = {
        "metrics": {"ppl": {"value": 1.0}},
        "engine": {"dtype": "float32", "seconds": {"load": 1.0}, "devices": [{"name": "x"}]},
        "tokenizer": {"source": "m", "sha256": "ab"},
        "identity": {"engine": {"dtype": "float32"}, "keep": "stored"},
        "other": 1,
    }
    assert not_checked(record) == ["engine", "identity.keep", "other", "tokenizer.source"]
    held = not_checked(record, ["engine", "scores"])
    assert held == [
        "engine.devices", "engine.seconds", "identity.keep", "other", "tokenizer.source"
    ]  # fmt: skip


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
