"""What a table says of conversations."""

from typing import Any

from scoremode.report.conversations import (
    chat_sentence,
    chat_words,
    conversation_rows,
    template_rows,
)
from scoremode.text.protocol import preset

FACTS: dict[str, Any] = {
    "template": {"source": "m/t.jinja", "sha256": 64 * "a", "arguments": {}, "date": None},
    "ends": [2],
    "read": 1200,
    "bad_rows": 0,
    "bad": [],
    "long": 0,
    "lost": 0,
    "turns": 3,
    "apart": 0,
    "unended": 0,
    "unprompted": 0,
    "straddling": 0,
}


def test_a_text_has_no_rows_of_them():
    assert conversation_rows({"name": "x"}) == template_rows({"name": "x"}) == []


def test_what_is_not_said_did_not_happen():
    assert conversation_rows({"conversations": FACTS}) == [
        ("turns", "1,200 conversations; 3 turns")
    ]
    source = f"m/t.jinja, sha256 {12 * 'a'}…"
    assert template_rows({"conversations": FACTS}) == [("chat template", source)]


def test_all_that_may_happen_is_said():
    names = ("bad_rows", "long", "lost", "apart", "unended", "unprompted", "straddling", "unmarked")
    names += ("outside", "prompted", "behind", "opening", "beyond")
    spread = {"least": 0, "median": 2.5, "most": 1200}
    facts = FACTS | dict.fromkeys(names, 1) | {"turn_targets": spread}
    assert conversation_rows({"conversations": facts}) == [
        (
            "turns",
            "1,200 conversations, 1 bad and left out, 1 longer than a window, 1 without a target "
            "left; 3 turns of 0 to 1,200 targets (median 2.5), 1 with a text of their own, 1 without "
            "an end, 1 that begin otherwise than the template prompts",
        ),
        (
            "not scored",
            "1 turn that the chat template doesn't mark as generated, 1 token outside the template's "
            "marks, 1 token marked, and given by the prompt, 1 token shared with what the model didn't "
            "generate, 1 token behind the end of a turn, 1 token with nothing before, 1 token beyond "
            "the context length",
        ),
    ]


def test_bad_rows_and_a_template_s_values_are_shown_harmless():
    given = {"arguments": {"enable_thinking": False}, "date": "2025-01-01"}
    facts = FACTS | {"template": FACTS["template"] | given, "bad": ["x.jsonl, line 3: \x1b[31m"]}
    (_, words), left_out = template_rows({"conversations": facts})
    assert words.endswith('given {"enable_thinking": false}, for which today is 2025-01-01')
    assert left_out == ("left out", r"x.jsonl, line 3: \x1b[31m")


def test_a_protocol_in_a_line():
    rules = preset("chat").override(scored="completion", long="split").resolve(None).to_json()
    assert chat_words(rules) == (
        "chat+scored=completion+long=split (the last turn's targets; longer than 4,096 tokens: split)"
    )
    assert chat_sentence(rules, FACTS) == (
        f"each conversation by itself by chat template {12 * 'a'}, those longer than 4,096 tokens "
        "split into windows, the last turn's targets"
    )
    assert chat_sentence(rules, FACTS | {"template": None}).startswith(
        "each conversation by itself, "
    )
