"""JSON that Python would take, or end in a traceback for."""

import math
from pathlib import Path

import pytest
from support.checkpoint_folders import refusal

from scoremode.checkpoint.config import is_deep, parse_json, read_json
from scoremode.errors import CheckpointError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1, "a": 2}', "not JSON: 'a' is written twice"),
        ('{"a": "\\ud800"}', "not JSON: holds half a surrogate pair"),
        ('{"a": ' * 70 + "1" + "}" * 70, "not JSON: nested too deeply"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[1]", "holds a list, not an object"),
        ("null", "holds a NoneType, not an object"),
    ],
)
def test_config_that_is_no_json_object(single, text, message):
    (Path(single) / "config.json").write_text(text)
    assert refusal(single).startswith(f"{single}/config.json: {message}")


def test_json_in_another_encoding(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match="not JSON"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": [{"b": 1, "b": 1}]}', "'b' is written twice"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b'"\\ude00"', "holds half a surrogate pair"),
        (b'"\xff"', "not in UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_python_would_take_is_refused(content, said):
    with pytest.raises(ValueError) as error:
        parse_json(content, has_constants=False)
    assert str(error.value) == said


def test_what_is_right_is_read():
    assert parse_json(b'{"a": "\\ud83d\\ude00", "b": [1.5]}', has_constants=False) == {
        "a": "\U0001f600",
        "b": [1.5],
    }
    assert parse_json(b"-Infinity", has_constants=True) == -math.inf


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_how_deep_is_too_deep():
    assert not is_deep(nested(64)) and is_deep(nested(65)) and not is_deep(1)
    assert is_deep({"a": nested(64), "b": 1})
