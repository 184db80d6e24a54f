"""Replies as rows that read back as the very tokens that were generated."""

import numpy as np
import pytest
from support.chats.templates import SHAPES

from scoremode.engines.sampling import Reply
from scoremode.errors import CorpusError
from scoremode.runs.replies import Prompt, Replying, prompts_of
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, tokens_of
from scoremode.text.tokenizer import Tokenizer, load_tokenizer

ABOUT = {"prompt": 0, "sample": 0, "seed": 1}


@pytest.fixture(scope="module")
def tokenizer(data) -> Tokenizer:
    return load_tokenizer(data / "tokenizers" / "qwen2")


def replying(tokenizer: Tokenizer, shape: str, **arguments: object) -> Replying:
    ends = {tokenizer.backend.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")}
    template = ChatTemplate(shape, SHAPES.get(shape, shape), arguments=arguments)
    return Replying(tokenizer, template, frozenset(ends))


def prompt(content: str = "Hi") -> Prompt:
    (found,) = prompts_of([{"prompt": content, "domain": "talk"}], ["r"], "n", "s", "0").prompts
    return found


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.backend.encode(text, add_special_tokens=False).ids)


def read_back(found: Replying, row: dict) -> tuple[list[int], list[int]]:
    """All ids of a row and those that count, as a run reads them."""
    spoken = Spoken(found.tokenizer, found.template, found.ends)
    (tokens,) = tokens_of(conversation_of(row, "r"), spoken)
    return tokens.ids.tolist(), tokens.ids[tokens.counts].tolist()


@pytest.mark.parametrize(
    ("shape", "said", "form"),
    [
        ("chatml", "Hello!<|im_end|>", "messages"),
        ("chatml", "Hello!\n\n  <|im_end|>", "messages"),
        ("chatml", " \u00e9\U0001f999 <b> <|im_end|>", "messages"),
        ("chatml", "<|im_start|>Hello!<|im_end|>", "messages"),
        # Another end of a turn than the template writes.
        ("chatml", "Hello!<|endoftext|>", "text"),
        # It says nothing, which no message may.
        ("chatml", "<|im_end|>", "text"),
        ("thinking", "<think>\nHm\n</think>\n\nHello!<|im_end|>", "text"),
        # Not in the way that the template writes reasoning.
        ("thinking", "<think>Hm</think>Hello!<|im_end|>", "text"),
        ("r1", "Hm\n</think>\n\nHello!<|im_end|>", "text"),
        ("spaced", "Hello!<|im_end|>", "messages"),
        ("{{ messages[0].content | trim }}>{% for m in messages[1:] %}{{ m.content | trim }}"
         "<|im_end|>{% endfor %}", " Hello!<|im_end|>", "text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [False, True])
def test_every_way_of_writing(tokenizer, shape, said, form, cut):
    found = replying(tokenizer, shape)
    if cut and said == "<|im_end|>":
        return
    text = said.removesuffix("<|endoftext|>").removesuffix("<|im_end|>") if cut else said
    ids = ids_of(tokenizer, text)
    row = found.row(prompt(), Reply(ids, ended=not cut), ABOUT)
    assert row is not None
    if not cut:
        assert ("messages" if "messages" in row else "text") == form
    whole, counted = read_back(found, row)
    assert whole == [*found.ids(prompt()), *ids] and counted == list(ids)
    assert row["finish_reason"] == ("length" if cut else "stop")
    assert row["domain"] == "talk"
    assert row["generated"] == {**ABOUT, "tokens": len(ids)}


@pytest.mark.parametrize("shape", ["chatml", "thinking", "spaced", "open", "harmony", "r1"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_spelling_that_the_tokenizer_would_not_choose_is_kept_by_its_ids(tokenizer, shape, cut):
    found = replying(tokenizer, shape)
    ids = tuple(i for c in "Hello" for i in ids_of(tokenizer, c))
    assert ids != ids_of(tokenizer, "Hello")
    ids += () if cut else ids_of(tokenizer, "<|im_end|>")
    row = found.row(prompt(), Reply(ids, ended=not cut), ABOUT)
    assert row is not None and row["generated_ids"] == list(ids)
    assert read_back(found, row) == ([*found.ids(prompt()), *ids], list(ids))


def test_a_character_that_was_cut_in_two_is_left_out(tokenizer):
    found = replying(tokenizer, "chatml")
    letter = ids_of(tokenizer, "a\U00010348")
    assert len(letter) == 3
    row = found.row(prompt(), Reply(letter[:-1], ended=False), ABOUT)
    assert row is not None and row["messages"][-1]["content"] == "a"
    assert row["generated"]["tokens"] == 1


def test_half_characters_inside_are_kept_by_their_ids(tokenizer):
    found = replying(tokenizer, "chatml")
    half = ids_of(tokenizer, "\U00010348")[:1]
    ids = (*ids_of(tokenizer, "a"), *half, *ids_of(tokenizer, "b<|im_end|>"))
    row = found.row(prompt(), Reply(ids, ended=True), ABOUT)
    assert row is not None and "\ufffd" in str(row)
    assert read_back(found, row)[1] == list(ids)


def test_what_comes_back_in_no_way_is_left_out(tokenizer):
    """Such as an entry of the head that no token has."""
    found = replying(tokenizer, "chatml")
    beyond = 151_900
    assert tokenizer.backend.id_to_token(beyond) is None
    ids = (*ids_of(tokenizer, "Hello"), beyond, *ids_of(tokenizer, "<|im_end|>"))
    assert found.row(prompt(), Reply(ids, ended=True), ABOUT) is None


def test_prompts_that_the_template_refuses_or_makes_nothing_of(tokenizer):
    with pytest.raises(CorpusError, match="its chat template refuses: no"):
        replying(tokenizer, "{{ raise_exception('no') }}").ids(prompt())
    with pytest.raises(CorpusError, match="r: its chat template prompts for no reply"):
        replying(tokenizer, "{% if false %}x{% endif %}").ids(prompt())


def test_the_prompt_is_what_the_template_writes_for_a_reply(tokenizer):
    found = replying(tokenizer, "thinking", enable_thinking=False)
    text = "<|im_start|>userHi<|im_end|>\n<|im_start|>assistant<think>\n\n</think>\n\n"
    assert found.prompted(prompt()) == text
    assert np.array_equal(found.ids(prompt()), ids_of(tokenizer, text))
