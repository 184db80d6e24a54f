"""Which tokens of a conversation count."""

import numpy as np
import pytest
from support.chats.templates import CHATS, SHAPES, chat

from scoremode.errors import CorpusError
from scoremode.text.conversations.messages import Conversation, conversation_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, Tokens, tokens_of
from scoremode.text.tokenizer import Tokenizer, load_tokenizer

ENDS = ("<|im_end|>", "<|endoftext|>")
LLAMA = "Hello! \u00e9\U0001f999"


@pytest.fixture(scope="module")
def tokenizer(data) -> Tokenizer:
    """Qwen 2's own, whose pattern joins newlines and takes spaces into words."""
    return load_tokenizer(data / "tokenizers" / "qwen2")


def spoken(tokenizer: Tokenizer, shape: str, scored: str = "assistant") -> Spoken:
    ends = frozenset(map(tokenizer.backend.token_to_id, ENDS))
    assert None not in ends
    return Spoken(tokenizer, ChatTemplate(shape, SHAPES[shape]), ends, scored)  # pyright: ignore[reportArgumentType]


def counted(tokenizer: Tokenizer, tokens: Tokens) -> list[str]:
    """The texts of all runs of tokens that count."""
    places = np.flatnonzero(tokens.counts)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    decode = tokenizer.backend.decode
    return [decode(tokens.ids[run].tolist(), skip_special_tokens=False) for run in runs]


@pytest.mark.parametrize(
    ("shape", "texts"),
    [
        ("chatml", [[f"{LLAMA}<|im_end|>", "4<|im_end|>"]]),
        (
            "thinking",
            [
                [f"<think>\n\n</think>\n\n{LLAMA}<|im_end|>"],
                ["<think>\nsimple\n</think>\n\n4<|im_end|>"],
            ],
        ),
        ("harmony", [[f"<|fim_middle|>{LLAMA}<|endoftext|>"], ["<|fim_middle|>4<|endoftext|>"]]),
        ("r1", [[f"{LLAMA}<|im_end|>", "4<|im_end|>"]]),
        ("open", [[f"{LLAMA}\n", "4\n"]]),
        ("marked", [[f"{LLAMA}<|im_end|>", "4<|im_end|>"]]),
    ],
)
def test_the_tokens_that_the_model_generated_count(tokenizer, shape, texts):
    how = spoken(tokenizer, shape)
    found = tokens_of(chat("two turns"), how)
    assert [counted(tokenizer, tokens) for tokens in found] == texts
    assert all(not tokens.counts[0] for tokens in found)
    tally = how.tally
    assert (tally.turns, tally.apart) == (2, len(texts) - 1)
    assert tally.unended == (2 if shape == "open" else 0)
    assert tally.unprompted == (2 if shape == "r1" else 0)


@pytest.mark.parametrize("shape", ["chatml", "thinking", "harmony"])
@pytest.mark.parametrize("name", ["two turns", "one turn"])
def test_they_are_what_follows_the_prompts_own_tokens(tokenizer, shape, name):
    """By another way: the tokens of the prompt alone are the beginning of the text's, and the model
    goes on from there to the first end."""
    conversation, how = chat(name), spoken(tokenizer, shape)
    assert how.template is not None
    wanted = []
    for i, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = how.template.render(conversation.messages[:i], prompts=True).text
        whole = how.template.render(conversation.messages[: i + 1]).text
        before, ids = (tokenizer.encode(t, special_tokens=False).tolist() for t in (prompt, whole))
        assert ids[: len(before)] == before
        end = next(k for k in range(len(before), len(ids)) if ids[k] in how.ends)
        wanted += ids[len(before) : end + 1]
    got = [tokens.ids[tokens.counts] for tokens in tokens_of(conversation, how)]
    assert np.concatenate(got).tolist() == wanted


def test_a_token_of_prompt_and_reply_does_not_count(tokenizer):
    """`: ` ends the prompt, and `\u2423Hello` is one token."""
    how = spoken(tokenizer, "spaced")
    (tokens,) = tokens_of(chat("one turn"), how)
    assert counted(tokenizer, tokens) == ["!\n\nHow are you?\n<|im_end|>"]
    assert how.tally.straddling == 1


def test_all_targets_are_all_but_the_first(tokenizer):
    (tokens,) = tokens_of(chat("two turns"), spoken(tokenizer, "chatml", "all"))
    assert tokens.counts.tolist() == [False] + [True] * (len(tokens.ids) - 1)


def test_a_reply_that_spells_the_end_ends_there(tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b<|im_end|>c"},
    ]
    (tokens,) = tokens_of(conversation_of({"messages": messages}, "r"), spoken(tokenizer, "chatml"))
    assert counted(tokenizer, tokens) == ["b<|im_end|>"]


def test_a_completion_has_what_the_tokenizer_puts_around_a_text(data):
    tokenizer = load_tokenizer(data / "stories260K")
    front, behind = tokenizer.added
    how = Spoken(tokenizer, None, frozenset())
    (tokens,) = tokens_of(Conversation("r", text=("Once upon a", " time.")), how)
    whole = tokenizer.encode("Once upon a time.", special_tokens=True)
    assert np.array_equal(tokens.ids, whole) and len(front) == 1 and not behind
    assert counted(tokenizer, tokens) == ["time."]


def test_a_conversation_without_a_target_is_refused(tokenizer):
    with pytest.raises(CorpusError, match=r"^r: no token of it is a target"):
        tokens_of(Conversation("r", text=("a", "")), spoken(tokenizer, "chatml"))


def test_every_conversation_is_read_alike_twice(tokenizer):
    for name in CHATS:
        one, other = (tokens_of(chat(name), spoken(tokenizer, "chatml")) for _ in range(2))
        assert all(
            np.array_equal(a.ids, b.ids) and np.array_equal(a.counts, b.counts)
            for a, b in zip(one, other, strict=True)
        )


@pytest.mark.parametrize("shape", ["chatml", "thinking", "harmony", "open", "spaced"])
def test_no_end_counts_that_the_model_did_not_generate(tokenizer, shape):
    row = CHATS["two turns"] | {"finish_reason": "length"}
    told = spoken(tokenizer, shape, "completion")
    (tokens,) = tokens_of(conversation_of(row, "r"), told)
    (text,) = counted(tokenizer, tokens)
    assert text.endswith("4") and told.tally.unended == 1
    assert not told.ends & set(tokens.ids[tokens.counts].tolist())


def respelled(tokenizer, text, ids, shape="chatml", **fields):
    """The ids that count of a reply whose row has `ids`, and how many turns were scored in such."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    row = {"messages": messages, "generated_ids": ids, **fields}
    told = spoken(tokenizer, shape)
    (tokens,) = tokens_of(conversation_of(row, "r"), told)
    return tokens.ids[tokens.counts].tolist(), told.tally.respelled


def test_ids_that_spell_the_text_are_taken(tokenizer):
    end = tokenizer.backend.token_to_id("<|im_end|>")
    letters = [tokenizer.backend.token_to_id(c) for c in "Hello"]
    assert respelled(tokenizer, "Hello", [*letters, end]) == ([*letters, end], 1)
    assert respelled(tokenizer, "Hello", letters, finish_reason="length") == (letters, 1)
    # Under a template whose prompt ends with a blank that the tokenizer joins to the reply.
    assert respelled(tokenizer, "Hello", [*letters, end], "spaced") == ([*letters, end], 1)


def test_ids_that_spell_another_text_are_not_believed(tokenizer):
    end = tokenizer.backend.token_to_id("<|im_end|>")
    letters = [tokenizer.backend.token_to_id(c) for c in "Hello"]
    own = [*tokenizer.encode("Hello", special_tokens=False).tolist(), end]
    for ids in ([*letters[:-1], end], letters, [*letters, end, end], [-1, *letters], [10**12]):
        assert respelled(tokenizer, "Hello", ids) == (own, 0)


def test_only_the_last_turn_has_its_ids(tokenizer):
    end = tokenizer.backend.token_to_id("<|im_end|>")
    four = tokenizer.backend.token_to_id("4")
    row = CHATS["two turns"] | {"generated_ids": [four, end]}
    for shape in ("chatml", "thinking"):
        told = spoken(tokenizer, shape)
        found = tokens_of(conversation_of(row, "r"), told)
        plain = tokens_of(chat("two turns"), spoken(tokenizer, shape))
        assert told.tally.respelled == (shape == "chatml")
        for one, other in zip(found, plain, strict=True):
            assert np.array_equal(one.ids, other.ids)
            assert np.array_equal(one.counts, other.counts)


def test_a_pair_of_texts_has_its_ids_behind_what_the_tokenizer_adds(demo):
    tokenizer = load_tokenizer(demo / "model")
    a, b = (tokenizer.backend.token_to_id(t) for t in ("a", "n"))
    row = {"prompt": "The ", "completion": "an", "generated_ids": [a, b]}
    told = Spoken(tokenizer, None, frozenset({1}))
    (tokens,) = tokens_of(conversation_of(row, "r"), told)
    prompt = tokenizer.encode("The ", special_tokens=True).tolist()
    assert prompt[0] == tokenizer.bos
    assert tokens.ids.tolist() == [*prompt, a, b] and told.tally.respelled == 1
    assert np.flatnonzero(tokens.counts).tolist() == [len(prompt), len(prompt) + 1]
