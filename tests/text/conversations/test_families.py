"""What counts under the templates of eight families of models, and properties under any template."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats.families import FAMILIES, with_specials
from support.chats.templates import SHAPES, chat

from scoremode.errors import CorpusError
from scoremode.text.conversations.corpus import conversations_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, Tokens, tokens_of
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.tokenizer import Tokenizer

# Contents are of letters that no template writes: each conversation has a pair of its own.
PEOPLE, MODELS = "абвгд", "αβγδε"
TEMPLATES = {name: family.jinja for name, family in FAMILIES.items()} | {
    f"{name} shape": jinja for name, jinja in SHAPES.items()
}


@pytest.fixture(scope="module")
def tokenizer(data, tmp_path_factory) -> Tokenizer:
    """Qwen 2's, with the special tokens of all families."""
    return with_specials(data / "tokenizers" / "qwen2", tmp_path_factory.mktemp("families"))


def ids_of(tokenizer: Tokenizer, names: tuple[str, ...]) -> frozenset[int]:
    ids = [tokenizer.backend.token_to_id(name) for name in names]
    assert None not in ids
    return frozenset(ids)


def template_of(name: str) -> ChatTemplate:
    family = FAMILIES[name]
    begins = [s for s in family.specials if s in ("<s>", "<bos>") or "begin" in s]
    tokens = {"bos_token": begins[0]} if begins else {}
    return ChatTemplate(
        name, family.jinja, tokens | {"eos_token": family.ends[0]}, dict(family.arguments)
    )


def runs(tokenizer: Tokenizer, tokens: Tokens) -> list[str]:
    """The texts of all runs of tokens that count."""
    places = np.flatnonzero(tokens.counts)
    found = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    decode = tokenizer.backend.decode
    return [decode(tokens.ids[run].tolist(), skip_special_tokens=False) for run in found]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_s_model_generates(tokenizer, name):
    family = FAMILIES[name]
    how = Spoken(tokenizer, template_of(name), ids_of(tokenizer, family.ends))
    found = tokens_of(chat("two turns"), how)
    assert [text for tokens in found for text in runs(tokenizer, tokens)] == list(family.said)
    targets = sum(int(tokens.counts.sum()) for tokens in found)
    assert (sum(len(tokens.ids) for tokens in found), targets) == family.counts
    # Alone it has as many tokens.
    alone = [tokenizer.encode(text, special_tokens=False) for text in family.said]
    assert targets == sum(map(len, alone))
    assert (how.tally.turns, how.tally.apart, how.tally.unended) == (2, family.apart, 0)
    assert how.tally.unprompted == (2 if name == "deepseek r1" else 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_s_prompt_is_no_target(tokenizer, name):
    """Nothing of what transformers would give the model before it begins counts."""
    family = FAMILIES[name]
    template = template_of(name)
    how = Spoken(tokenizer, template, ids_of(tokenizer, family.ends))
    messages = chat("two turns").messages
    for tokens in tokens_of(chat("two turns"), how):
        last = np.flatnonzero(tokens.counts)[-1]
        turn = 5 if int(last) > len(tokens.ids) - 2 and "4" in runs(tokenizer, tokens)[-1] else 3
        prompt = template.render(messages[: turn - 1], prompts=True).text
        before = tokenizer.encode(prompt, special_tokens=False)
        if name == "deepseek r1":
            # What its prompt has more than any turn: `<think>` and a newline.
            before = before[:-2]
        assert np.array_equal(tokens.ids[: len(before)], before)
        begin = np.flatnonzero(np.diff(np.flatnonzero(tokens.counts)) > 1)
        first = np.flatnonzero(tokens.counts)[begin[-1] + 1 if len(begin) else 0]
        assert first == len(before)


# A person may write anything, a model anything but what ends its turn.
ODD = st.sampled_from(
    [
        " ",
        "\n",
        "\n\n",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<think>",
        "\U0001f999",
        "é",
        "</s>",
    ]
)


def texts(letter: str, *, odd: bool) -> st.SearchStrategy[str]:
    pieces = st.text(letter + " \n.", min_size=1, max_size=8)
    parts = st.lists(st.one_of(pieces, ODD) if odd else pieces, min_size=1, max_size=4)
    # Neither blank, nor begun or ended by what a template may trim.
    return parts.map(lambda found: f"{letter}{''.join(found)}{letter}")


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for i in range(draw(st.integers(1, len(PEOPLE)))):
        system = {"role": "system", "content": draw(texts(PEOPLE[i], odd=True))}
        messages = [system] if draw(st.booleans()) else []
        for _ in range(draw(st.integers(1, 3))):
            messages.append({"role": "user", "content": draw(texts(PEOPLE[i], odd=True))})
            said = {"role": "assistant", "content": draw(texts(MODELS[i], odd=False))}
            if draw(st.booleans()):
                said["reasoning"] = draw(texts(MODELS[i], odd=False))
            messages.append(said)
        found.append({"messages": messages})
    return found


def planned(tokenizer: Tokenizer, found: list[dict[str, Any]], name: str, **rules: Any) -> Plan:
    ends = ids_of(tokenizer, tuple(sorted({end for f in FAMILIES.values() for end in f.ends})))
    names = [f"row {i}" for i in range(len(found))]
    chats = conversations_of(found, names, name="x", source="x", digest="x", size=0)
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    protocol = preset("chat").override(**rules).resolve(None)
    return chats.planned(
        protocol, tokenizer, ChatTemplate(name, TEMPLATES[name], special), ends
    ).plan


def spelled(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    return tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)


@settings(max_examples=150)
@given(
    found=rows(),
    name=st.sampled_from(sorted(TEMPLATES)),
    length=st.sampled_from([24, 48, 4096]),
    long=st.sampled_from(["truncate", "split", "skip"]),
    scored=st.sampled_from(["assistant", "completion"]),
)
def test_every_target_is_the_assistant_s_and_nothing_crosses_a_conversation(
    tokenizer, found, name, length, long, scored
):
    rules = {"context_length": length, "long": long, "scored": scored}
    try:
        plan = planned(tokenizer, found, name, **rules)
    except CorpusError as error:
        assert "no target is left" in str(error)
        return
    assert plan.conversation is not None and plan.lengths.max() <= length
    everyone = set(PEOPLE + MODELS)
    for w, conversation in enumerate(plan.conversation.tolist()):
        window = spelled(tokenizer, plan.tokens[plan.start[w] : plan.stop[w]])
        assert everyone & set(window) <= {PEOPLE[conversation], MODELS[conversation]}
        target = spelled(tokenizer, plan.tokens[plan.start[w] + plan.positions(w)])
        assert not set(PEOPLE) & set(target), target
        assert plan.positions(w).min() >= 1
    # No target is scored twice.
    _, _, index = plan.targets()
    assert len(np.unique(index)) == len(index) == plan.scored


@settings(max_examples=100)
@given(
    found=rows(),
    name=st.sampled_from(sorted(set(TEMPLATES) - {"spaced shape"})),
    length=st.sampled_from([48, 4096]),
)
def test_all_that_the_assistant_said_is_scored_once(tokenizer, found, name, length):
    """Split as well, and with the reasoning where the template writes that."""
    plan = planned(tokenizer, found, name, context_length=length, long="split")
    assert plan.conversation is not None
    for i, row in enumerate(found):
        windows = np.flatnonzero(plan.conversation == i)
        places = np.concatenate([plan.start[w] + plan.positions(w) for w in windows])
        target = spelled(tokenizer, plan.tokens[places])
        said = [m for m in row["messages"] if m["role"] == "assistant"]
        content = sum(m["content"].count(MODELS[i]) for m in said)
        thought = sum(m.get("reasoning", "").count(MODELS[i]) for m in said)
        assert target.count(MODELS[i]) in (content, content + thought)
