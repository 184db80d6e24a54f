"""The page's text: one file, of bounded size, whose policy allows what is in it and nothing else."""

import base64
import copy
import hashlib
import json
import re
import sys
import zlib
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape
from support.report_data import FIGURES, report_data
from support.run_folders import NOISE, scores_of, write_run

from scoremode.errors import UsageError
from scoremode.report.page.document import finding, markup, page, section_part, write_report
from scoremode.report.page.style import visible

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


ASSETS = ("styles", "style_hashes", "script_hashes", "licenses", "data", "vega", "script")


def plain_markup(token: str) -> str:
    """The page's markup alone, with `token` among its texts and as its run's name."""
    report = report_data(1, token=token)
    run = report["sections"][0]["runs"][0]
    run["name"] = run["source"] = token
    report = visible(report)
    parts = [section_part(section) for section in report["sections"]]
    return markup(report, parts, **dict.fromkeys(ASSETS, ""))


@cache
def tags_of_a_word() -> list[str]:
    return [tag for tag, _ in Parsed(plain_markup("word")).tags]


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


def section(count=5):
    return copy.deepcopy(report_data(count)["sections"][0])


def test_the_closest_is_named_with_its_numbers():
    made = section()
    first = made["runs"][0]
    words = finding(made)
    assert words.startswith(f"{first['name']} is the closest to the base: mean KLD")
    assert f"{first['kld']['value']:.3g}" in words


def test_the_frontier_is_counted():
    made = section()
    frontier = next(f for f in made["frontiers"] if f["id"] == "bits_file/kld")
    beaten = frontier["line"].pop(1)
    names = {run["id"]: run["name"] for run in made["runs"]}
    words = finding(made)
    assert f"{len(frontier['line'])} of 5 lie on the frontier" in words
    assert names[beaten] not in words.split("frontier")[1]
    frontier["line"][:] = [point["run"] for point in frontier["points"]]
    assert "All lie on the frontier" in finding(made)


def test_who_cannot_be_told_apart_is_said():
    made = section()
    assert "told apart" not in finding(made)
    pair = made["matrices"][0]["pairs"][0]
    pair["verdict"] = "not distinguishable"
    names = {run["id"]: run["name"] for run in made["runs"]}
    assert f"can't be told apart from {names[pair['b']]}" in finding(made)


def test_one_run_none_and_no_base():
    assert "against its base: mean KLD" in finding(section(1))
    exact = section(1)
    exact["runs"][0]["kld"] |= {"value": 0.0, "lower": 0.0, "upper": 0.0}
    assert "exactly what its base does" in finding(exact)
    alone = section(1)
    alone["runs"][0]["is_base"] = True
    assert finding(alone) == "Only the base itself was measured."
    made = section(3)
    made["ranked_by"] = "ppl"
    assert "the lowest perplexity: " in finding(made) and "KLD" not in finding(made)


def test_each_place_of_a_chart_has_its_specs(six):
    part = section_part(report_data(6)["sections"][0])
    for name, specs in part.charts.items():
        assert f'data-chart="{name}"' in six and specs
    assert six.count('class="chart"') == len(part.charts) == len(FIGURES)
    assert "<h2" not in six and six.count(escape(part.finding)) == 1


def test_each_of_several_sections_has_a_heading_and_its_finding():
    report = report_data(6, sections=2)
    made = page(report)
    for section in report["sections"]:
        assert f'<h2 id="{section["id"]}">' in made
    assert made.count(escape(finding(report["sections"][1]))) == 2
    assert "Note: runs/old has no hashes" in made


def test_greys_are_explained_where_there_are_some(six):
    words = "In colour: the closest on the frontier"
    assert words not in six and words in page(report_data(8))


def test_the_worst_tokens_stand_side_by_side():
    report = report_data(4)
    first = report["sections"][0]["worst"][0]
    first["runs"] = first["runs"][:2]
    first["top1"][0]["text"] = None
    table = page(report).split('id="s0-worst"')[1].split("</table>")[0]
    assert table.count("<tr>") == 7
    row = table.split("<tr>")[2]
    assert "window 0, position 17" in row and f"KLD {first['kld'][0]:.3g}" in row
    assert ">id 7</span>" in row and row.count("<td>–</td>") == 2


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=40))
def test_no_text_leaves_its_place(raw):
    made = plain_markup(raw)
    assert [tag for tag, _ in Parsed(made).tags] == tags_of_a_word()
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u202e\ud800-\udfff]", made)


@pytest.fixture
def runs(tmp_path):
    for name, noise in NOISE.items():
        write_run(tmp_path / "runs" / name, scores_of(noise))
    return tmp_path / "runs"


def test_a_folder_of_runs_becomes_a_page_and_plots(runs, tmp_path):
    pytest.importorskip("vl_convert")
    output = tmp_path / "report.html"
    command = ["scoremode", "report", "runs"]
    files = write_report([runs], output, tmp_path / "plots", command=command)
    assert files[0] == output and set(files[1:]) == set((tmp_path / "plots").iterdir())
    page = output.read_text()
    assert all(name in page for name in NOISE) and "scoremode report runs" in page
    write_report([runs], tmp_path / "again.html", command=command)
    assert (tmp_path / "again.html").read_text() == page


def test_without_the_extra_nothing_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match="scoremode"):
        write_report([tmp_path / "none"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
