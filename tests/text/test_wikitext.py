"""WikiText's pages: where they begin, what is read of them, what is counted."""

import random
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from support.harness_runs import NEEDED

from scoremode.text.corpus import pages_of
from scoremode.text.task_requests import detokenized, page_words


def test_pages_begin_with_headings_of_articles():
    one = " = One = \n \n first , \n \n = = Part = = \n \n = = = Detail = = = \n"
    two = " = Two = \n last \n"
    assert pages_of(f" \n{one}\n{two}") == (one, two)


@pytest.mark.parametrize(
    ("raw", "pages"),
    [
        ("no heading\nat all", ("no heading\nat all",)),
        ("before\n = A = \n", ("before", " = A = \n")),
        (" = A = \n = B = ", (" = A = ", " = B = ")),
        ("", ("",)),
    ],
)
def test_other_texts_are_cut_by_the_same_rule(raw, pages):
    assert pages_of(raw) == pages


def test_wikitext_2_has_62_pages(data):
    raw = (data / "wikitext2/wiki.test.raw").read_bytes().decode()
    pages = pages_of(raw)
    # The data set on the hub has as many; its first line is blank, and of no page.
    assert len(pages) == 62 and "\n".join([" ", *pages]) == raw
    assert pages[0].startswith(" = Robert Boulter = \n")


@pytest.mark.parametrize(
    ("page", "words"), [("", 1), ("one", 1), (" one\n two ", 4), ("a\u00a0b\tc", 3)]
)
def test_words_are_what_whitespace_separates(page, words):
    assert page_words(page) == words


def test_a_page_is_detokenized():
    page = ' = = A @-@ B = = \n He said , " no ( really ) " : 1 @,@ 000 \'s \n'
    assert detokenized(page) == ' == A-B ==\nHe said, "no (really)": 1,000\'s\n'


@pytest.mark.skipif(find_spec("lm_eval") is None, reason=NEEDED)
def test_it_is_detokenized_as_the_harness_does(data):
    package = find_spec("lm_eval")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "tasks/wikitext/preprocess_wikitext.py"
    spec = spec_from_file_location("preprocess_wikitext", file)
    assert spec is not None and spec.loader is not None
    theirs = module_from_spec(spec)
    spec.loader.exec_module(theirs)
    drawn, parts = (
        random.Random(0),
        [*"' \"()[]{}=@-,.:;!?sNo\n°5/", " @-@ ", " = = ", "/' 5/", "s '"],
    )
    texts = ["".join(drawn.choices(parts, k=drawn.randrange(30))) for _ in range(20_000)]
    texts += pages_of((data / "wikitext2/wiki.test.raw").read_bytes().decode())
    for text in texts:
        assert detokenized(text) == theirs.wikitext_detokenizer({"page": text})
        counts = theirs.process_results({"page": text}, (0.0,))
        assert counts["word_perplexity"][1] == page_words(text)
