"""JSON as it is written: for people, and for hashes."""

import json
from hashlib import sha256

import pytest

from scoremode.lib.json import canonical, json_digest, json_text, print_json


def test_text_is_read_back_in_its_order():
    value = {"b": [1, 2.5, None], "a": "ünï"}
    text = json_text(value)
    assert json.loads(text) == value and list(json.loads(text)) == ["b", "a"]
    assert text.startswith('{\n  "b": [') and text.endswith("\n}\n") and "ünï" in text
    assert json_text(value, ascii_only=True).isascii()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_text_has_no_number_that_json_has_not(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": [number]})


def test_equal_values_have_one_digest():
    one, two = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert json_digest(one) == json_digest(two) != json_digest(one | {"a": 1.0})
    assert canonical(one) == '{"a": 1, "b": {"c": 2, "d": 3}}'
    assert json_digest(one) == sha256(b'{"a": 1, "b": {"c": 2, "d": 3}}').hexdigest()


def test_printed_is_the_text(capsys):
    print_json({"a": "é"})
    assert capsys.readouterr().out == json_text({"a": "é"})
