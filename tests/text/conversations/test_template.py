"""Chat templates against transformers' own rendering."""

import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from support.chats.templates import CHATS, SHAPES, chat, real_templates
from transformers.utils import chat_template_utils

from scoremode.errors import TokenizerError
from scoremode.text.conversations.template import BEGIN, DATE, END, ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(autouse=True)
def today(monkeypatch):
    """transformers gives templates the time, ours a date."""

    class Then(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Then":
            return cls.combine(DATE, datetime.time())

    monkeypatch.setattr(chat_template_utils, "datetime", Then)


def theirs(jinja: str, messages: Sequence[Any], tools: Any, *, prompts: bool) -> str:
    chats = [list(messages)]
    tools = None if tools is None else list(tools)
    rendered, _ = chat_template_utils.render_jinja_template(
        chats, tools=tools, chat_template=jinja, add_generation_prompt=prompts, **TOKENS
    )
    return rendered[0]


def compare(jinja: str) -> int:
    """Compares all beginnings of all conversations; how many both render, the others both refuse."""
    template, same = ChatTemplate("t", jinja, TOKENS), 0
    for name in CHATS:
        found = chat(name)
        for n in range(1, len(found.messages) + 1):
            for prompts in (False, True):
                messages = found.messages[:n]
                try:
                    wanted = theirs(jinja, messages, found.tools, prompts=prompts)
                except Exception:  # noqa: BLE001  Jinja's, or Python's own from inside a template
                    with pytest.raises(TokenizerError, match="its chat template refuses"):
                        template.render(messages, found.tools, prompts=prompts)
                    continue
                assert template.render(messages, found.tools, prompts=prompts).text == wanted
                same += 1
    return same


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_are_those_of_transformers(shape):
    assert compare(SHAPES[shape]) == 22


def test_texts_of_published_templates_are_those_of_transformers():
    files = sorted(real_templates().glob("*.jinja"))
    assert len(files) > 50
    assert sum(compare(file.read_text(encoding="utf-8")) for file in files) > 1000


@pytest.mark.parametrize("shape", ["marked", "chatml"])
def test_marks_are_those_of_transformers(shape):
    found = ChatTemplate("t", SHAPES[shape]).render(chat("two turns").messages)
    rendered, marks = chat_template_utils.render_jinja_template(
        [list(chat("two turns").messages)],
        chat_template=SHAPES[shape],
        return_assistant_tokens_mask=True,
    )
    assert found.text == rendered[0] and list(found.marks) == marks[0]
    said = ["Hello! \u00e9\U0001f999", "4"] if shape == "marked" else []
    assert [found.text[b:e] for b, e in found.marks] == said


def test_marks_survive_what_a_template_does_with_a_text():
    """transformers counts characters while it renders, and a macro's come late."""
    jinja = (
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
        "{% set text %}{% for m in messages %}({{ say(m) }}){% endfor %}{% endset %}[{{ text | trim }}]"
    )
    found = ChatTemplate("t", jinja).render([{"content": "ab"}, {"content": "c"}])
    assert found.text == "[(ab)(c)]" and found.marks == ((2, 4), (6, 7))


@pytest.mark.parametrize("text", [BEGIN, END, END + BEGIN])
def test_a_text_with_marks_of_its_own_is_refused(text):
    with pytest.raises(TokenizerError, match="t: a message has one of the characters"):
        ChatTemplate("t", SHAPES["chatml"]).render([{"role": "user", "content": text}])


@pytest.mark.parametrize("where", ["content", "name", "tools"])
def test_marks_that_a_message_pairs_are_not_believed(where):
    said = {"role": "user", "content": "Hi", "name": "n"}
    tools = [{"name": "f"}]
    marked = f"a{BEGIN}b{END}"
    if where == "tools":
        tools = [{"name": marked}]
    else:
        said[where] = marked
    jinja = "{{ tools[0].name }}{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}"
    with pytest.raises(TokenizerError, match="t: a message has one of the characters"):
        ChatTemplate("t", jinja).render([said], tools)


def test_what_is_no_unicode_text_is_refused():
    with pytest.raises(TokenizerError, match="t: its chat template writes no Unicode text"):
        ChatTemplate("t", SHAPES["chatml"]).render([{"role": "us\ud800er", "content": "a"}])


def test_a_template_that_writes_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr("scoremode.text.conversations.environment.MOST_CHARACTERS", 5000)
    jinja = (
        "{% for a in range(9999) %}{% for b in range(99999) %}abc{{ b }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(TokenizerError, match="refuses: it writes more than 5,000 characters"):
        ChatTemplate("t", jinja).render([{"role": "user", "content": "a"}])


def test_the_date_is_the_one_given():
    jinja = "{{ strftime_now('%d %b %Y') }}"
    template = ChatTemplate("t", jinja, date=datetime.date(2024, 7, 26))
    assert template.render([]).text == "26 Jul 2024"
    assert template.to_json()["date"] == "2024-07-26"
    assert ChatTemplate("t", "a").to_json()["date"] is None


# A text or list that is doubled again and again.
_DOUBLED = (
    "{%% macro m(s) %%}{{ s }}{{ s }}{%% endmacro %%}{%% set n = namespace(s='a') %%}"
    "{%% for i in range(99) %%}{%% set n.s = %s %%}{%% endfor %%}"
)


@pytest.mark.parametrize(
    ("jinja", "words"),
    [
        ("{% if %}", "its chat template is not one"),
        ("{{ raise_exception('roles must alternate') }}", "refuses: roles must alternate"),
        ("{{ messages[9].content }}", "refuses"),
        ("{{ ().__class__.__mro__ }}", "refuses: access to attribute"),
        ("{{ messages.append(1) }}", "refuses: access to attribute"),
        ("{% set n = namespace(_x=1) %}", "refuses: a namespace has no attribute"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "refuses"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses too deep"),
        ("{{ 1 // 0 }}", "refuses: ZeroDivisionError: "),
        ("{{ 1.5 ** 99999 }}", "refuses: OverflowError: "),
        ("{{ [1] | sum(start='a') }}", "refuses: TypeError: "),
        ("{{ ('9' * 5000) | int(base=16) }}", "refuses: ValueError: "),
        ("{% break %}", "is not one: SyntaxError: 'break' outside loop"),
        ("{% macro f() %}{% continue %}{% endmacro %}", "is not one: SyntaxError: "),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "is not one: SyntaxError: too many"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is not one: "),
        ("{{ [1, 2] | random }}", "refuses: the filter random gives another text each time"),
        ("{{ lipsum() }}", "refuses: lipsum gives another text each time"),
        ("{{ messages[0].keys() - ['role'] }}", "refuses: a set has another order each time"),
        ("{{ strftime_now('%Y %s') }}", "refuses: strftime_now's %s depends on the machine's time"),
        ("{{ messages | map('upper') }}", "writes a program's object, whose address (0x"),
        ("{{ 'a' ~ range }}", "writes a program's object"),
        ("{{ 10 ** (10 ** 8) }}", "refuses: it makes more than 65,536 binary digits"),
        ("{% set n = namespace(a=9**9999) %}{{ n.a * n.a * n.a * n.a }}", "binary digits"),
        ("{{ 'ab' * 10**9 }}", "refuses: it makes more than 67,108,864 characters"),
        ("{{ 10**9 * [1] }}", "refuses: it makes more than 1,048,576 entries"),
        (_DOUBLED % "n.s + n.s", "refuses: it makes more than 67,108,864 characters"),
        (_DOUBLED % "n.s ~ n.s", "refuses: it makes more than 67,108,864 characters"),
        (_DOUBLED % "m(n.s)", "refuses: it makes more than 67,108,864 characters"),
        (_DOUBLED.replace("'a'", "[0]") % "n.s + n.s", "it makes more than 1,048,576 entries"),
        ("{% for i in range(10000000) %}{% endfor %}", "refuses: OverflowError: Range too big"),
    ],
)
def test_what_is_wrong_with_a_template_is_one_line(jinja, words):
    with pytest.raises(TokenizerError) as caught:
        ChatTemplate("model", jinja).render([{"role": "user", "content": "Hi"}])
    assert str(caught.value).startswith("model: ") and words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_conversation_gives_can_not_be_given():
    ChatTemplate("t", "a", arguments={"enable_thinking": False}).check()
    with pytest.raises(
        TokenizerError, match="--chat-template-kwargs: tools is each conversation's own"
    ):
        ChatTemplate("t", "a", arguments={"x": 1, "tools": []}).check()


def test_an_address_that_was_given_is_a_text():
    said = "<function f at 0x7f0c2a3b4d30> and <g at 0x1>"
    template = ChatTemplate(
        "t", "{{ messages[0].content }}<h at 0x2>{{ a }}", arguments={"a": said}
    )
    assert template.render([{"role": "user", "content": said}]).text == f"{said}<h at 0x2>{said}"
    with pytest.raises(TokenizerError, match="whose address"):
        ChatTemplate("t", "{{ messages[0].content }}{{ range }}").render([{"content": said}])
