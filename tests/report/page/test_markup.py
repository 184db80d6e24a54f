"""Nothing that a text holds is markup or script, and everything in it is seen."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.report.page.markup import element, script_json, text, visible

# Any code point, lone surrogates included.
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\u202eevil", "\\u202eevil"),
        ("a\u2028b\x00\ud800", "a\\u2028b\\x00\\ud800"),
        ("\u200b\ufeff\u2066", "\\u200b\\ufeff\\u2066"),
        ("tab\tnew\n", "tab\\tnew\\n"),
        ("שלום né 漢", "שלום né 漢"),
    ],
)
def test_what_has_no_sign_of_its_own_is_written_out(raw, shown):
    assert visible({"a": [raw, 1, None, {"b": (raw,)}]}) == {"a": [shown, 1, None, {"b": [shown]}]}


def test_attributes_and_text_are_escaped():
    made = element(
        "td", text("<b>&\"'"), title='"><script>', class_="a", data_run=None, hidden=True
    )
    assert made == (
        '<td title="&quot;&gt;&lt;script&gt;" class="a" hidden>&lt;b&gt;&amp;&quot;&#x27;</td>'
    )


@given(ANY)
def test_no_text_leaves_its_place(raw):
    assert not re.search("[<>\"'\x00-\x1f\u2028\u202e\ud800-\udfff]", text(raw))


@given(
    st.recursive(ANY | st.integers() | st.none(), lambda v: st.lists(v) | st.dictionaries(ANY, v))
)
def test_json_in_a_script_element_cannot_end_it_and_comes_back(value):
    made = script_json(value)
    assert made.isascii() and not re.search("[<>&]", made)
    assert json.loads(made) == json.loads(json.dumps(value))


def test_a_number_that_json_lacks_is_refused():
    with pytest.raises(ValueError):
        script_json([float("nan")])
