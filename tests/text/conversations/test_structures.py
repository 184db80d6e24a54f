"""Which tokens count under the structures of published templates, against transformers' rendering."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from support.chats.families import FAMILIES
from support.chats.oracle import Refused, Said, said_by
from support.chats.structures import STRUCTURES, TALKS, Structure
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from scoremode.errors import CorpusError
from scoremode.text.conversations.corpus import Talk, conversations_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.protocol import preset
from scoremode.text.tokenizer import Tokenizer, load_tokenizer

ALL = STRUCTURES | {
    f"family of {name}": Structure(
        f.jinja,
        f.ends,
        f.specials,
        {"bos_token": "<s>", "eos_token": f.ends[0], **dict(f.arguments)},
    )
    for name, f in FAMILIES.items()
}
NAMED = ("straddling", "outside", "behind", "opening", "prompted", "unmarked")


@pytest.fixture(scope="module")
def tokenizer(data, tmp_path_factory) -> Tokenizer:
    """Qwen 2's, with the special tokens of all structures."""
    backend = Backend.from_file(str(data / "tokenizers" / "qwen2" / "tokenizer.json"))
    names = {name for s in ALL.values() for name in (*s.ends, *s.specials)}
    backend.add_special_tokens([AddedToken(name, special=True) for name in sorted(names)])
    folder = tmp_path_factory.mktemp("structures")
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def planned(
    tokenizer: Tokenizer, structure: Structure, chats: list[list[dict[str, Any]]], **rules: Any
) -> Talk:
    names = [f"row {i}" for i in range(len(chats))]
    rows = [{"messages": messages} for messages in chats]
    corpus = conversations_of(rows, names, name="x", source="x", digest="x", size=0)
    template = ChatTemplate("t", structure.jinja, structure.arguments)
    ids = frozenset(map(tokenizer.backend.token_to_id, structure.ends))
    return corpus.planned(preset("chat").override(**rules).resolve(None), tokenizer, template, ids)


def expected(tokenizer: Tokenizer, structure: Structure, messages: list[dict[str, Any]]) -> Said:
    ends = {tokenizer.backend.token_to_id(name) for name in structure.ends}
    values = structure.arguments
    return said_by(messages, structure.jinja, tokenizer.backend, ends, **values)


def scored(talk: Talk) -> Counter[tuple[int, ...]]:
    """Each target with all ids before it."""
    plan, found = talk.plan, Counter[tuple[int, ...]]()
    for w in range(len(plan)):
        start = int(plan.start[w])
        for position in plan.positions(w).tolist():
            found[tuple(plan.tokens[start : start + position + 1].tolist())] += 1
    return found


def check(talk: Talk, said: list[Said]) -> None:
    facts = talk.facts
    wanted = sum((each.targets for each in said), Counter[tuple[int, ...]]())
    assert scored(talk) == wanted and talk.plan.scored == wanted.total()
    named = sum((each.named for each in said), Counter[str]())
    assert {name: facts[name] for name in NAMED} == {name: named[name] for name in NAMED}
    turns = [n for each in said for n in each.turns]
    assert facts["turns"] == len(turns) and sum(turns) == talk.plan.scored
    spread = {"least": min(turns), "median": float(np.median(turns)), "most": max(turns)}
    assert facts["turn_targets"] == spread
    # Of each turn one target is its first, and as many are its second as turns have two.
    assert talk.plan.turn_place is not None and talk.plan.counted is not None
    places = Counter(talk.plan.turn_place[talk.plan.counted].tolist())
    assert places == Counter(place for n in turns for place in range(n))


@pytest.mark.parametrize("name", ALL)
def test_every_token_of_a_turn_is_scored_once_or_named(tokenizer, name):
    structure, good = ALL[name], 0
    for messages in TALKS.values():
        try:
            said = expected(tokenizer, structure, messages)
        except (Refused, TemplateError, TypeError) as error:
            with pytest.raises(CorpusError):
                planned(tokenizer, structure, [messages])
            assert isinstance(error, Refused) or "tool" in str(messages)
            continue
        if not said.targets:
            with pytest.raises(CorpusError, match=r"row 0: no token of it is a target"):
                planned(tokenizer, structure, [messages])
            continue
        check(planned(tokenizer, structure, [messages]), [said])
        good += 1
    # A template that marks calls alone has nothing to score of a chat without one.
    assert good >= (1 if name == "calls alone marked" else 4)


def test_a_call_s_arguments_are_the_same_as_text_and_as_an_object(tokenizer):
    """OpenAI's API has JSON in a string; templates walk through it, or write it themselves."""
    text = json.loads(json.dumps(TALKS["tools"]))
    for message in text:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    assert text != TALKS["tools"]
    for name in ("qwen 3 coder", "glm 4.5", "hermes", "harmony with tools"):
        plans = [planned(tokenizer, ALL[name], [chat]).plan for chat in (text, TALKS["tools"])]
        assert plans[0].sha256 == plans[1].sha256


def test_an_unmarked_turn_is_never_scored_wherever_it_stands(tokenizer):
    """Of a template that marks some turns: before a marked one, behind one, and alone."""
    odd, even = ({"role": "assistant", "content": c} for c in ("odd", "even"))
    asks = {"role": "user", "content": "?"}
    counts = {}
    for name, turns in {"before": [even, odd], "behind": [odd, even], "only": [odd]}.items():
        chat = [message for turn in turns for message in (asks, turn)]
        facts = (talk := planned(tokenizer, ALL["some turns"], [chat])).facts
        counts[name] = (talk.plan.scored, facts["turns"], facts["unmarked"], facts["outside"])
    # `even` and its end.
    assert counts["before"][:3] == counts["behind"][:3] == (2, 1, 1)
    assert counts["only"] == (2, 1, 0, 0) and counts["before"][3] == counts["behind"][3] == 2
    with pytest.raises(CorpusError, match="is a target: its chat template marks none of it as"):
        planned(tokenizer, ALL["some turns"], [[asks, even]])


def test_a_mark_begins_where_the_prompt_ends(tokenizer):
    """What the prompt gives is no target, whatever of it a mark holds."""
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "c"},
    ]
    found = {}
    for name in (
        "smollm3",
        "smollm3 that doesn't think",
        "header and reasoning",
        "half of the header",
    ):
        talk = planned(tokenizer, ALL[name], [chat])
        ids = talk.plan.tokens[talk.plan.start[0] + talk.plan.positions(0)].tolist()
        text = tokenizer.backend.decode(ids, skip_special_tokens=False)
        found[name] = (text, talk.facts["prompted"])
    assert found == {
        "smollm3": ("b<|im_end|>", 3),
        "smollm3 that doesn't think": ("b<|im_end|>", 7),
        "header and reasoning": ("<think>\nc\n</think>\n\nb<|im_end|>", 3),
        "half of the header": ("b<|im_end|>", 2),
    }


@st.composite
def talks(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Chats of any turns: one behind the other, with thoughts, calls, and ends within."""
    words = st.text("ab .\n\u00e9", min_size=1, max_size=6)
    words = st.lists(
        st.one_of(words, st.sampled_from(["<|im_end|>", "<think>", "</s>"])), min_size=1
    )
    content = words.map(lambda parts: f"x{''.join(parts[:4])}x")
    chats = []
    for _ in range(draw(st.integers(1, 3))):
        messages = [{"role": "user", "content": draw(content)}]
        for kind in [*draw(st.lists(st.sampled_from("uaart"), max_size=5)), "a"]:
            role = "user" if kind == "u" else "assistant"
            message: dict[str, Any] = {"role": role, "content": draw(content)}
            if kind == "r":
                message |= dict.fromkeys(("reasoning_content", "thinking"), draw(content))
            if kind == "t":
                function = {"name": "f", "arguments": {"k": draw(content)}}
                message["tool_calls"] = [{"id": "abcdefghi", "function": function}]
            messages.append(message)
        chats.append(messages)
    return chats


@settings(max_examples=80)
@given(
    chats=talks(),
    name=st.sampled_from(sorted(ALL)),
    length=st.sampled_from([24, 4096]),
    long=st.sampled_from(["truncate", "split", "skip"]),
)
def test_any_chats(tokenizer, chats, name, length, long):
    said = []
    for chat in chats:
        try:
            found = expected(tokenizer, ALL[name], chat)
        except (Refused, TemplateError):
            continue
        if found.targets:
            said.append((chat, found))
    if not said:
        return
    try:
        talk = planned(
            tokenizer, ALL[name], [chat for chat, _ in said], context_length=length, long=long
        )
    except CorpusError as error:
        assert length == 24 and "no target is left" in str(error)
        return
    facts, total = talk.facts, sum(sum(each.turns) for _, each in said)
    assert talk.plan.scored + facts["beyond"] == total and facts["beyond"] >= 0
    if length == 4096:
        check(talk, [each for _, each in said])
    assert not (long == "split" and facts["beyond"])
