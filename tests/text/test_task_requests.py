"""Requests as texts: where a pair is cut, what stands before it, and what can't be asked."""

from dataclasses import replace

import pytest
from support.task_runs import made_requests

from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CorpusError, ProtocolError, TokenizerError
from scoremode.text.task_requests import TASKS, TextRequest, request_corpus
from scoremode.text.tokenizer import Tokenizer

LENGTH = 64
PROTOCOL = replace(TASKS, context_length=LENGTH)


@pytest.fixture(scope="module")
def tokenizer(demo) -> Tokenizer:
    return checkpoint_tokenizer(demo / "model")


def windows(tokenizer, *requests, prefix=0):
    """Of each request its windows' tokens and how many of their last ones count."""
    planned = request_corpus(requests).planned(PROTOCOL, tokenizer, prefix)
    plan = planned.plan
    found = []
    for begin, end in zip(planned.begin[:-1], planned.begin[1:], strict=True):
        of = planned.window[begin:end]
        found.append(
            [(plan.tokens[plan.start[w] : plan.stop[w]].tolist(), int(plan.counts[w])) for w in of]
        )
    return found


def test_a_pair_is_encoded_whole_and_cut_behind_its_context(tokenizer):
    context, answer = "There was a tree", " in the garden."
    (((tokens, counted),),) = windows(tokenizer, TextRequest("t", 0, 0, context, answer))
    whole = tokenizer.encode(context + answer, special_tokens=True).tolist()
    before = tokenizer.encode(context, special_tokens=True).tolist()
    assert tokens == whole and counted == len(whole) - len(before) > 0


def test_spaces_at_a_contexts_end_are_the_continuations(tokenizer):
    one = TextRequest("t", 0, 0, "There was a tree  ", "in it.")
    other = TextRequest("t", 1, 0, "There was a tree", "  in it.")
    assert len({str(each) for each in windows(tokenizer, one, other)}) == 1


def test_what_nothing_precedes_stands_behind_the_prefix(tokenizer):
    empty, page = TextRequest("t", 0, 0, "", "A tree."), TextRequest("t", 1, 0, None, "A tree.")
    bare = tokenizer.encode("A tree.", special_tokens=False).tolist()
    found = windows(tokenizer, empty, page, prefix=5)
    assert found[0] == [([5, *bare], len(bare))]
    added = tokenizer.encode("A tree.", special_tokens=True).tolist()
    assert found[1] == [([5, *added], len(added))]
    with pytest.raises(TokenizerError, match="t, question 0, request 0: has no context"):
        windows(tokenizer, empty, prefix=None)


def test_each_token_of_a_long_text_counts_once(tokenizer):
    text = "The sun was warm, and the children played. " * 30
    (found,) = windows(tokenizer, TextRequest("t", 0, 0, None, text))
    counted = [token for tokens, count in found for token in tokens[-count:]]
    assert counted == tokenizer.encode(text, special_tokens=True).tolist()
    assert len(found) > 3 and all(len(tokens) <= LENGTH + 1 for tokens, _ in found)


def test_a_long_context_loses_its_beginning_and_a_long_answer_is_refused(tokenizer):
    long = "one two three " * 100
    planned = request_corpus([TextRequest("t", 0, 0, long, "end")]).planned(PROTOCOL, tokenizer, 0)
    assert planned.shortened == 1 and planned.plan.lengths.tolist() == [LENGTH + 1]
    with pytest.raises(ProtocolError, match=r"^t, question 0, request 0: .* reads 64 at a time"):
        windows(tokenizer, TextRequest("t", 0, 0, "A", long))
    with pytest.raises(
        CorpusError, match="t, question 0, request 1: its continuation has no token"
    ):
        windows(tokenizer, TextRequest("t", 0, 0, "A", " b"), TextRequest("t", 0, 1, "A", ""))


def test_an_empty_whole_text_has_no_window(tokenizer):
    empty, page = TextRequest("t", 0, 0, None, ""), TextRequest("t", 1, 0, None, "A tree.")
    none = (
        [] if not len(tokenizer.encode("", special_tokens=True)) else windows(tokenizer, empty)[0]
    )
    assert windows(tokenizer, empty, page)[0] == none


def test_the_order_of_asking_changes_nothing(tokenizer):
    requests = made_requests(4)
    one, other = request_corpus(requests), request_corpus(requests[::-1])
    assert one == other and one.name == "ends, more, pages"
    assert one.documents() == sorted(one.documents()) and max(one.documents()) == 9
    changed = [*requests[:-1], replace(requests[-1], continuation="Other.")]
    assert request_corpus(changed).source_sha256 != one.source_sha256
    with pytest.raises(CorpusError, match="ask for nothing"):
        request_corpus([])
