"""Labels of rows by the characters of their tokens, on real tokenizers of each kind."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoremode.errors import TokenizerError
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import labels_by_row
from scoremode.text.tokenizer import load_tokenizer

ROWS = [
    "Once upon a time.",
    "",
    "ünï 🦙\r\n\t  x",
    " = Robert = ",
    "def f(x):\n    return x\n",
    "1234",
]
LABELS = ["story", "none", "story", "wiki", "code", "code"]
KINDS = {
    "byte-level": "tokenizers/gpt2",
    "sentencepiece": "stories260K",
    "qwen": "tokenizers/qwen2",
}


def corpus_of(rows, labels, limit=None) -> Corpus:
    return Corpus("x", tuple(rows), "rows", "x", "", limit, group_by="kind", labels=tuple(labels))


def by_prefix(tokenizer, text: str, corpus: Corpus, rule) -> list[str]:
    """Each token's label by decoding all tokens up to it: the row of the character it begins in."""
    ids = tokenizer.encode(text, special_tokens=False).tolist()
    starts = [begin for begin, _ in corpus.row_labels(rule)]
    names = [label for _, label in corpus.row_labels(rule)]
    found = []
    for i in range(len(ids)):
        before = tokenizer.backend.decode(ids[:i], skip_special_tokens=False)
        # An unfinished character is the one that the token goes on with.
        at = len(before.rstrip("\ufffd")) if before else 0
        row = max(r for r, start in enumerate(starts) if start <= at)
        found.append(names[row])
    return found


@pytest.fixture(scope="module", params=KINDS, ids=str)
def tokenizer(request, data):
    return load_tokenizer(data / KINDS[request.param])


@pytest.mark.parametrize("rule", ["rows", "nonblank-rows"])
@pytest.mark.parametrize("limit", [None, 4])
def test_labels_are_those_of_the_decoded_prefixes(tokenizer, rule, limit):
    if tokenizer.backend.decode(tokenizer.encode("a  b", special_tokens=False).tolist()) != "a  b":
        pytest.skip("its decoder doesn't give the text back")
    corpus = corpus_of(ROWS, LABELS, limit)
    text = corpus.text(rule)
    tokens = tokenizer.encode(text, special_tokens=False)
    labels = labels_by_row(text, corpus.row_labels(rule), tokens, tokenizer)
    got = labels.at(np.arange(len(tokens))).tolist()
    assert got == by_prefix(tokenizer, text, corpus, rule)
    assert set(got) >= {"story", "wiki"}


def test_special_tokens_in_front_and_behind_change_nothing(tokenizer):
    corpus = corpus_of(ROWS, LABELS)
    text, rows = corpus.text("rows"), corpus.row_labels("rows")
    bare = tokenizer.encode(text, special_tokens=False)
    both = np.concatenate([[1], bare, [2]]).astype(np.int32)
    own = labels_by_row(text, rows, bare, tokenizer)
    labels = labels_by_row(text, rows, both, tokenizer)
    at = np.arange(len(bare))
    assert labels.at(at + 1).tolist() == own.at(at).tolist()
    assert labels.at(np.array([len(both) - 1])).tolist() == ["code"]


def test_other_tokens_than_the_text_s_are_refused(tokenizer):
    corpus = corpus_of(ROWS, LABELS)
    text = corpus.text("rows")
    tokens = tokenizer.encode(text, special_tokens=False)[::-1].copy()
    with pytest.raises(TokenizerError, match="doesn't tell which characters its tokens are"):
        labels_by_row(text, corpus.row_labels("rows"), tokens, tokenizer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.text("ab 🦙\nß1", max_size=12), min_size=1, max_size=6))
def test_each_row_s_own_text_begins_at_its_place(rows):
    for rule in ("rows", "nonblank-rows"):
        corpus = corpus_of(rows, [str(i) for i in range(len(rows))])
        text = corpus.text(rule)
        for begin, label in corpus.row_labels(rule):
            assert text[begin:].startswith(rows[int(label)])
        kept = [r for r in rows if rule == "rows" or r.strip()]
        assert len(corpus.row_labels(rule)) == len(kept)
