"""Classes of a record's fields: each section's, and what is listed of a record."""

from scoremode.results.audit.findings import HELD, class_of, not_checked
from scoremode.results.record.definition import SECTIONS
from scoremode.results.record.shape import Each, Either, Maybe, Where


def inner(shape: object, key: str) -> list[object]:
    """The shapes that a key of `shape` may have; any object has any key."""
    match shape:
        case Maybe():
            return inner(shape.shape, key)
        case Either():
            return inner(shape.shape, key) + inner(shape.other, key)
        case Where():
            return inner(shape.shape, key) + inner(shape.also, key)
        case Each():
            return [shape.shape]
        case list():
            return inner(shape[0], key)
        case dict():
            return [shape[name] for name in (key, f"{key}?") if name in shape]
    return [dict] if shape is dict else []


def test_each_section_of_the_definition_has_a_class():
    assert {name for name in HELD if "." not in name} >= SECTIONS.keys()


def test_each_field_of_a_class_is_one_of_the_definition():
    # An engine notes more of itself than the definition names, and so do these.
    free = ("engine", "corpus", "tokenizer", "identity", "calibration", "reference", "gates")
    for field in HELD:
        section, *keys = field.replace("stored.", "reference.").split(".")
        shapes = [SECTIONS[section].shape]
        for key in keys:
            shapes = [found for shape in shapes for found in inner(shape, key)]
        assert shapes or section in free, field


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
