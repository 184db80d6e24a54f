"""The page's text: one file, of bounded size, whose policy allows what is in it and nothing else."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import pytest
from support.report_data import report_data

from scoremode.report.page.document import page

pytest.importorskip("vl_convert")


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.raw, self.open = [], {"script": [], "style": []}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag if tag in self.raw else None
        if self.open:
            self.raw[tag].append("")

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.raw[self.open][-1] += data


@pytest.fixture(scope="module")
def six() -> str:
    return page(report_data(6))


def test_the_same_data_gives_the_same_bytes(six):
    assert page(report_data(6)) == six


def test_twenty_runs_with_long_names_are_well_below_a_megabyte_and_a_half():
    assert len(page(report_data(20, long=True)).encode()) <= 1_200_000


def test_the_policy_has_the_hash_of_each_script_and_style_and_nothing_else(six):
    parsed = Parsed(six)
    policy = next(a["content"] for t, a in parsed.tags if a.get("http-equiv"))
    found = set(re.findall(r"'sha256-([^']+)'", policy))
    _, vega, script = parsed.raw["script"]
    vega = zlib.decompress(base64.b64decode(vega)).decode()
    contents = [vega, script, *parsed.raw["style"]]
    assert found == {
        base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in contents
    }
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_nothing_is_asked_of_anywhere(six):
    for tag, attributes in Parsed(six).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "action", "style"} & set(attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_the_data_are_in_it_whole_with_texts_made_visible(six):
    data = json.loads(Parsed(six).raw["script"][0])
    expected = json.loads(json.dumps(report_data(6)))
    assert data["report"]["sections"][0]["runs"] == expected["sections"][0]["runs"]
    assert "\\u202eevil" in [
        fact["target"]["text"] for fact in data["report"]["sections"][0]["worst"]
    ]


def test_a_token_is_no_markup(six):
    assert "<script>alert" not in six and "&lt;script&gt;alert(1)&lt;/script&gt;" in six
    assert "\u202e" not in six


def test_licences_are_in_it_and_several_sections_are_listed(six):
    assert "University of Washington Interactive Data Lab" in six and "Mike Bostock" in six
    two = page(report_data(3, sections=2))
    assert 'href="#s1"' in two and 'href="#s1"' not in six
    assert "Made by scoremode 0.1.0" in two
