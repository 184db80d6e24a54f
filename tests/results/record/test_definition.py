"""What is published of a record's definition, and that it refuses what reading refuses."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from support.record_fields import mutations
from support.shard_runs import asked, shards

from scoremode.errors import RunFolderError
from scoremode.results.folders.store import read_record
from scoremode.results.record.checks import check_record
from scoremode.results.record.definition import SECTIONS, STATUSES
from scoremode.results.record.model import TorchEngine, VllmEngine
from scoremode.results.shards.merge import merge

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/record.schema.json").read_text("utf-8"))
PAGE = (ROOT / "docs/record.md").read_text("utf-8")
# A null here is refused unless another field of the section says why: a rule that the schema hasn't.
BETWEEN = (
    "head.file = None",
    "head.checkpoint = None",
    "bits_per_weight.file = None",
    "not_decoded",
)
# What only one of the three is of.
BEGUN = ("kept", "worst", "gates", "engine", "metrics", "seconds", "scores", "finished")


def test_the_page_has_every_section():
    for name in SECTIONS:
        assert f"\n| `{name}` | " in PAGE


def test_every_field_of_an_engine_is_explained():
    for engine in (TorchEngine, VllmEngine):
        for field in msgspec.structs.fields(engine):
            assert f"`{field.encode_name}`" in PAGE, field.name


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether JSON Schema 2020-12 takes `value`, by that standard's words and nothing of ours.

    A keyword that isn't known here fails the test: nothing is passed over.
    """
    for keyword, wanted in schema.items():
        match keyword:
            case "$schema" | "$defs" | "title" | "description" | "default" | "discriminator":
                ok = True
            case "$ref":
                ok = fits(value, SCHEMA["$defs"][wanted.removeprefix("#/$defs/")])
            case "type":
                ok = is_of(value, wanted)
            case "const":
                ok = value == wanted and type(value) is type(wanted)
            case "enum":
                ok = any(value == one and type(value) is type(one) for one in wanted)
            case "pattern":
                ok = not isinstance(value, str) or re.search(wanted, value) is not None
            case "minLength":
                ok = not isinstance(value, str) or len(value) >= wanted
            case "maxLength":
                ok = not isinstance(value, str) or len(value) <= wanted
            case "minimum":
                ok = not is_of(value, "number") or value >= wanted
            case "maximum":
                ok = not is_of(value, "number") or value <= wanted
            case "minItems":
                ok = not isinstance(value, list) or len(value) >= wanted
            case "maxItems":
                ok = not isinstance(value, list) or len(value) <= wanted
            case "prefixItems":
                pairs = zip(value, wanted, strict=False) if isinstance(value, list) else ()
                ok = all(fits(v, inner) for v, inner in pairs)
            case "items" if wanted is False:
                ok = not isinstance(value, list) or len(value) <= len(schema["prefixItems"])
            case "items":
                ok = not isinstance(value, list) or all(fits(v, wanted) for v in value)
            case "required":
                ok = not isinstance(value, dict) or set(wanted) <= set(value)
            case "properties":
                ok = not isinstance(value, dict) or all(
                    fits(value[key], inner) for key, inner in wanted.items() if key in value
                )
            case "additionalProperties":
                assert "properties" not in schema
                ok = not isinstance(value, dict) or all(fits(v, wanted) for v in value.values())
            case "anyOf":
                ok = any(fits(value, one) for one in wanted)
            case _:
                raise AssertionError(f"{keyword} is not known here")
        if not ok:
            return False
    return True


def is_of(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "number": number,
        "integer": number and value == int(value),
    }[kind]


def is_read(record: dict[str, Any]) -> bool:
    """Whether `check_record` lets it pass; what it says if not is one line that names the file."""
    try:
        check_record(record, Path("a/record.json"))
    except RunFolderError as error:
        assert str(error).startswith("a/record.json: ") and "\n" not in str(error)
        return False
    return True


@pytest.fixture(scope="module")
def sharded(demo, tmp_path_factory) -> dict[str, Path]:
    """A shard, and the run that is merged of it."""
    folder = tmp_path_factory.mktemp("sharded")
    (shard,) = shards(asked(demo, folder / "runs", 2500), 1)
    merge([shard], folder / "merged")
    return {"shard": shard, "merged": folder / "merged"}


@pytest.fixture(scope="module")
def records(real_runs, sharded) -> dict[str, dict[str, Any]]:
    """One of each kind: done, running, a shard, merged, ended as invalid, and of the vLLM engine."""
    done = {name: read_record(folder) for name, folder in (real_runs | sharded).items()}
    begun = {k: v for k, v in done["kept"].items() if k not in BEGUN}
    return done | {
        "running": begun | {"status": "running", "parts": [{"sha256": "0" * 64}]},
        "invalid": begun
        | {"status": "invalid", "reason": "no", "engine": done["ppl"]["engine"], "parts": []},
        "vllm": done["ppl"]
        | {
            "engine": done["ppl"]["engine"]
            | {
                "engine": "vllm",
                "vllm": "0.33.0",
                "runner": "V2",
                "linear": {"Marlin": 28},
                "head_dtype": "float32",
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "path": "pooler",
                "problem": None,
                "arguments": {"enforce_eager": "True"},
            }
        },
    }


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        ("kld", ()),
        ("kept", ("kept", "reference", "scores", "status")),
        ("running", ("parts", "identity", "schedule", "status", "sha256")),
        ("invalid", ("reason", "status", "parts")),
        ("vllm", ("engine",)),
        ("shard", ("shard", "identity", "status", "scores")),
        ("merged", ("merged",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schema_and_reading_agree(kind, sections, records):
    record, refused = records[kind], 0
    assert is_read(record) and fits(record, SCHEMA)
    # Of all fields every third change.
    for words, other in islice(mutations(record, *sections), 0, None, 1 if sections else 3):
        refused += not is_read(other)
        # To JSON Schema a number has no end; 2**70 is none that numpy holds.
        if f"= {2**70}" not in words or is_read(other):
            between = any(field in words for field in BETWEEN)
            assert fits(other, SCHEMA) == is_read(other) or between, words
    assert refused > (5 if sections else 300)


@pytest.mark.parametrize("version", [3, 2**40, 1, 0, -1, 2.0, "2", None, True])
def test_another_version_is_refused_by_name(version, records):
    record = records["ppl"] | {"schema_version": version}
    newer = r" \(a newer scoremode's\)" if version in (3, 2**40) else ""
    words = rf"its record is 'scoremode\.record' version {version!r}{newer}, not .* version 2$"
    with pytest.raises(RunFolderError, match=words):
        check_record(record, Path("a/record.json"))
    assert version == 2.0 or not fits(record, SCHEMA)


# Written for people to read; nothing here does.
FREE = {
    *("corpus.files", "corpus.joined", "corpus.skipped", "identity.engine", "reference.rows"),
}


def test_what_a_real_record_has_is_defined(records):
    """Every field that these runs wrote, but for what the definition leaves open."""
    for kind, record in records.items():
        names = {"status": str, **SECTIONS}
        assert record.keys() <= names.keys(), kind
        found = [path for key in record for path in undefined(record[key], names[key], key)]
        assert not found, kind
    assert {r["status"] for r in records.values()} == set(STATUSES)


def undefined(value: Any, kind: Any, at: str) -> Iterator[str]:
    """Places of keys that no type declares."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if at in FREE or value is None:
        return
    if isinstance(kind, UnionType):
        kinds = [k for k in get_args(kind) if k not in (NoneType, msgspec.UnsetType)]
        if len(kinds) > 1:
            kinds = [k for k in kinds if k.__struct_config__.tag == value["engine"]]
        yield from undefined(value, kinds[0], at)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        names = {f.encode_name: hints[f.name] for f in msgspec.structs.fields(kind)}
        if kind.__struct_config__.tag_field:
            names[kind.__struct_config__.tag_field] = str
        for key, inner in value.items():
            if key not in names:
                if f"{at}.{key}" not in FREE:
                    yield f"{at}.{key}"
            else:
                yield from undefined(inner, names[key], f"{at}.{key}")
    elif get_origin(kind) in (dict, list) and value:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in inside:
            yield from undefined(inner, get_args(kind)[-1], f"{at}.{key}")
