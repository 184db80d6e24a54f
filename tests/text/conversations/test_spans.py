"""The parts of an assistant's turn by the structures of published templates."""

from typing import Any

import numpy as np
import pytest
from support.chats.families import FAMILIES, with_specials
from support.chats.structures import STRUCTURES, Structure

from scoremode.errors import CorpusError
from scoremode.text.conversations.corpus import conversations_of
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.conversations.spans import BY_SPAN, SPANS
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, tokens_of
from scoremode.text.protocol import preset
from scoremode.text.tokenizer import Tokenizer

CALL = {
    "id": "functions.get_rain:0",
    "type": "function",
    "function": {"name": "get_rain", "arguments": {"city": 'Bari "old"', "days": [1, 2]}},
}
JSON = '{"city": "Bari \\"old\\"", "days": [1, 2]}'
# Qwen 3's, which splits a content; DeepSeek V3.1's, which adds arguments to a text.
SPLITS = Structure(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set thought = m.reasoning_content or '' %}{% set said = m.content %}"
    "{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADDS = Structure(
    "{% for m in messages %}{% if m.role == 'assistant' %}<|Assistant|></think>"
    "{% for c in m.tool_calls %}{{ '<|call|>' + c['function']['name'] + '<|sep|>' + "
    "c['function']['arguments'] + '<|/call|>' }}{% endfor %}<|eos|>"
    "{% else %}<|User|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|></think>{% endif %}",
    ("<|eos|>",),
)


@pytest.fixture(scope="module")
def tokenizer(data, tmp_path_factory) -> Tokenizer:
    """Qwen 2's, with DeepSeek's and Qwen's special tokens."""
    return with_specials(data / "tokenizers" / "qwen2", tmp_path_factory.mktemp("spans"))


def said(tokenizer: Tokenizer, template: Structure, message: dict[str, Any]) -> list[list[str]]:
    """The parts of a reply, `[name, text of its tokens]`, in order."""
    how = ChatTemplate("t", template.jinja, template.arguments)
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", **message}]}
    (tokens,) = tokens_of(
        conversation_of(row, "row 0"), Spoken(tokenizer, how, frozenset(), by_span=True)
    )
    assert tokens.span is not None
    return grouped(tokenizer, tokens.ids[tokens.counts], tokens.span[tokens.counts])


def grouped(tokenizer: Tokenizer, ids: np.ndarray, spans: np.ndarray) -> list[list[str]]:
    edges = np.flatnonzero(np.diff(spans)) + 1
    return [
        [SPANS[kinds[0]], tokenizer.decode(some.tolist())]
        for some, kinds in zip(np.split(ids, edges), np.split(spans, edges), strict=True)
    ]


def told(parts: list[list[str]], *names: str) -> list[list[str]]:
    return [part for part in parts if part[0] in names]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hermes", JSON),
        ("llama 3 with tools", JSON),
        ("harmony with tools", JSON),
        ("mistral with tools", JSON),
        ("kimi k2", JSON),
        ("qwen 3 coder", 'city>\nBari "old"\n</parameter><parameter=days>\n[1, 2]'),
        (
            "glm 4.5",
            'city</arg_key>\n<arg_value>Bari "old"</arg_value>'
            "<arg_key>days</arg_key>\n<arg_value>[1, 2]",
        ),
        ("adds", JSON),
    ],
)  # fmt: skip
def test_a_call_s_name_and_arguments_are_where_the_template_writes_them(tokenizer, name, arguments):
    template = ADDS if name == "adds" else STRUCTURES[name]
    # The words of the call stand in the content as well, and nothing is searched for.
    content = f"get_rain {JSON}" if name in ("hermes", "kimi k2", "qwen 3 coder") else ""
    parts = said(tokenizer, template, {"content": content, "tool_calls": [CALL, CALL]})
    names, given = told(parts, "tool name"), told(parts, "tool arguments")
    # A token that a part begins in, or ends in, is of it.
    assert len(names) == 2 and all("get_rain" in text for _, text in names)
    assert len(given) == 2
    assert all(arguments in text and len(text) <= len(arguments) + 4 for _, text in given)
    assert [text.strip() for _, text in told(parts, "answer")] == ([content] if content else [])


@pytest.mark.parametrize("family", ["qwen 3 that thinks", "gpt-oss"])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_the_field_by_whatever_name_the_template_reads(tokenizer, family, field):
    own = FAMILIES[family]
    template = Structure(own.jinja, own.ends)
    message = {"content": "The answer: 4 and 5.", field: " 2 + 2 and\n2 + 3\n"}
    parts = said(tokenizer, template, message)
    assert [text.strip() for _, text in told(parts, "reasoning")] == ["2 + 2 and\n2 + 3"]
    assert [text for _, text in told(parts, "answer")] == ["The answer: 4 and 5."]
    assert parts[-1][0] == "template" and parts[0][0] == "template"


@pytest.mark.parametrize(
    ("content", "reasoning", "answer"),
    [
        ("<think>\nfirst this\nthen that\n</think>\n\nIt is so.", "first this\nthen that", "It is so."),
        ("<think>\na\n</think>\n\nb", "a", "b"),
        # As a template writes it itself: the same text, and split as well.
        ("first\n</think>\n\nIt is so.", "first", "It is so."),
        ("<think>\n\n</think>\n\nIt is so.", None, "It is so."),
        ("<think>\nfirst\n</think>", "first", None),
        ("It is so.", None, "It is so."),
    ],
)  # fmt: skip
def test_a_content_is_split_where_the_template_splits_it(tokenizer, content, reasoning, answer):
    parts = said(tokenizer, SPLITS, {"content": content})
    assert [text.strip() for _, text in told(parts, "reasoning")] == (
        [reasoning] if reasoning else []
    )
    assert [text.strip() for _, text in told(parts, "answer")] == ([answer] if answer else [])


def test_what_a_template_does_not_split_is_the_answer(tokenizer):
    content = "<think>\nfirst\n</think>\n\nIt is so."
    parts = said(tokenizer, STRUCTURES["hermes"], {"content": content})
    assert parts[:-1] == [["answer", content]]


def test_code_is_what_lies_between_fences(tokenizer):
    content = (
        "See `x`:\n\n```python\nx = 1\n\n~~~\n```\nand\n~~~~\ny ```\n~~~\n~~~~\n```rust\nlet z"
    )
    parts = said(tokenizer, STRUCTURES["hermes"], {"content": content})
    assert [text.strip() for _, text in told(parts, "code")] == [
        "x = 1\n\n~~~",
        "y ```\n~~~",
        "let z",
    ]
    assert "".join(text for _, text in parts[:-1]) == content


@pytest.mark.parametrize("name", ["mistral with tools", "harmony with tools", "kimi k2"])
def test_an_answer_that_begins_with_code_behind_a_mark_begins_a_line(tokenizer, name):
    parts = said(tokenizer, STRUCTURES[name], {"content": "```python\nx = 1\n```\nDone."})
    assert [part for part in parts if part[0] != "template"] == [
        ["answer", "```python\n"],
        ["code", "x = 1\n"],
        ["answer", "```\nDone."],
    ]


def test_lines_of_code_may_end_as_on_windows(tokenizer):
    content = "```py\r\nx = 1\r\n```\r\nDone."
    parts = said(tokenizer, STRUCTURES["hermes"], {"content": content})
    assert [text.strip() for _, text in parts[:-1]] == ["```py", "x = 1", "```\r\nDone."]
    assert [name for name, _ in parts[:-1]] == ["answer", "code", "answer"]


def test_a_field_that_is_rewritten_is_refused(tokenizer):
    jinja = STRUCTURES["hermes"].jinja.replace("{{ m.content }}", "{{ m.content | upper }}")
    with pytest.raises(
        CorpusError, match=r"^row 0, message 1: content \('abc'\): the chat template"
    ):
        said(
            tokenizer, Structure(jinja.replace("upper", "replace('abc', 'x')")), {"content": "abc"}
        )
    # Capitals stay where they were.
    assert said(tokenizer, Structure(jinja), {"content": "abc"})[0] == ["answer", "ABC"]


def test_ids_as_they_were_generated_have_the_parts_of_their_text(tokenizer):
    """Their spelling is not the tokenizer's, and a character may have several."""
    text, own = "Café \U0001f999\n```\nab\n```", []
    for c in text:
        own += tokenizer.encode(c, special_tokens=False).tolist()
    row = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}],
        "generated_ids": [*own, tokenizer.backend.token_to_id("<|im_end|>")],
    }
    how = ChatTemplate("t", STRUCTURES["hermes"].jinja)
    ends = frozenset({row["generated_ids"][-1]})
    (tokens,) = tokens_of(conversation_of(row, "r"), Spoken(tokenizer, how, ends, by_span=True))
    assert tokens.span is not None and tokens.counts.sum() == len(own) + 1
    assert grouped(tokenizer, tokens.ids[tokens.counts], tokens.span[tokens.counts]) == [
        ["answer", "Café \U0001f999\n```\n"],
        ["code", "ab\n"],
        ["answer", "```"],
        ["template", "<|im_end|>"],
    ]


def test_groups_of_a_plan_are_the_parts_of_all_turns(tokenizer):
    """Turns that share a text, and one that has its own, keep their parts."""
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "It is so.", "reasoning_content": "first this"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "`a`", "reasoning_content": "then that"},
    ]
    corpus = conversations_of(
        [{"messages": talk}, {"prompt": "1 + 1", "completion": " = 2"}], ["row 0", "row 1"],
        name="x", source="x", digest="x", size=0, group_by=BY_SPAN,
    )  # fmt: skip
    family = FAMILIES["qwen 3 that thinks"]
    ends = frozenset(map(tokenizer.backend.token_to_id, family.ends))
    template = ChatTemplate("t", family.jinja)
    plan = corpus.planned(preset("chat").resolve(None), tokenizer, template, ends).plan
    assert plan.labels is not None
    *_, index = plan.targets()
    at = plan.labels.at(index)
    texts = {
        name: sorted(tokenizer.decode(plan.tokens[index[at == name]].tolist()).split("\n"))
        for name in ("reasoning", "answer")
    }
    assert plan.labels.names == ("answer", "reasoning", "template")
    assert "first this" in "\n".join(texts["reasoning"]) and "then that" in "\n".join(
        texts["reasoning"]
    )
    assert "It is so." in "\n".join(texts["answer"]) and " = 2" in "\n".join(texts["answer"])
    with pytest.raises(CorpusError, match="--group-by span groups what the assistant says"):
        corpus.planned(
            preset("chat").override(scored="all").resolve(None), tokenizer, template, ends
        )
