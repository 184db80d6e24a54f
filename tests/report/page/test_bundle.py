"""Vega for the page and for files, or one line on what to install."""

import base64
import sys
import zlib

import pytest

from scoremode.errors import UsageError
from scoremode.report.page.bundle import packed, plotting, scripts


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"pip install 'scoremode\[report\]'") as found:
        plotting()
    assert "\n" not in str(found.value)


def test_scripts_fit_an_element_and_are_the_same_twice():
    pytest.importorskip("vl_convert")
    made = scripts()
    assert zlib.decompress(base64.b64decode(packed(made))).decode() == made
    assert len(packed(made)) < 450_000
    assert "expressionInterpreter" in made and made == scripts()
