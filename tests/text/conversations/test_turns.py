"""Which characters of a conversation's text the model generated."""

import pytest
from support.chats.templates import CHATS, SHAPES, chat, real_templates

from scoremode.errors import CorpusError
from scoremode.text.conversations.messages import Conversation, conversation_of
from scoremode.text.conversations.template import ChatTemplate, Turn, turns


def template(shape: str, **arguments: object) -> ChatTemplate:
    return ChatTemplate(shape, SHAPES[shape], arguments=arguments)


def generated(found: list[Turn]) -> list[str]:
    return ["".join(turn.text[begin:end] for begin, end in turn.spans) for turn in found]


LLAMA = "Hello! \u00e9\U0001f999"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("chatml", [f"{LLAMA}<|im_end|>\n", "4<|im_end|>\n"]),
        (
            "thinking",
            [
                f"<think>\n\n</think>\n\n{LLAMA}<|im_end|>\n",
                "<think>\nsimple\n</think>\n\n4<|im_end|>\n",
            ],
        ),
        ("harmony", [f"<|fim_middle|>{LLAMA}<|endoftext|>", "<|fim_middle|>4<|endoftext|>"]),
        ("r1", [f"{LLAMA}<|im_end|>", "4<|im_end|>"]),
        ("open", [f"{LLAMA}\n", "4\n"]),
        ("marked", [LLAMA, "4"]),
    ],
)
def test_a_turn_is_what_follows_the_prompt_for_it(shape, said):
    found = turns(chat("two turns"), template(shape), "assistant")
    assert generated(found) == said
    assert all(turn.as_prompted == (shape != "r1") for turn in found)
    # All that came before a turn is in its text.
    assert all("Hi <b>" in turn.text[: turn.begin] for turn in found)


def test_a_prompt_that_thinks_already_is_no_part_of_the_turn():
    conversation = conversation_of({"messages": CHATS["one turn"]["messages"]}, "r")
    (turn,) = turns(conversation, template("thinking", enable_thinking=False), "assistant")
    assert generated([turn]) == ["Hello!\n\nHow are you?\n<|im_end|>\n"]


def test_a_reply_that_begins_as_the_prompt_ends_is_whole():
    """The prompt ends with `<think>`, which no turn has; the reply begins with its first character."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<b>c"}]
    conversation = conversation_of({"messages": messages}, "r")
    assert generated(turns(conversation, template("r1"), "assistant")) == ["<b>c<|im_end|>"]
    # One that takes no reply but its own is gone by what the two have in common.
    picky = SHAPES["r1"].replace(
        "{{ m.content }}", "{{ raise_exception('no') if m.content == '\ufdd2' else m.content }}"
    )
    found = generated(turns(conversation, ChatTemplate("t", picky), "assistant"))
    assert found == ["b>c<|im_end|>"]


def test_the_completion_alone():
    both = chat("two turns")
    assert generated(turns(both, template("chatml"), "completion")) == ["4<|im_end|>\n"]
    row = {"prompt": list(both.messages[:2]), "completion": list(both.messages[2:3])}
    found = turns(conversation_of(row, "r"), template("chatml"), "completion")
    assert generated(found) == [f"{LLAMA}<|im_end|>\n"]


def test_all_is_the_whole_text():
    (turn,) = turns(chat("two turns"), template("chatml"), "all")
    assert (turn.begin, turn.end) == (0, len(turn.text)) and turn.text.count("<|im_end|>") == 5


def test_a_prompt_and_its_completion_need_no_template():
    pair = Conversation("r", text=("1 + 1 =", " 2"))
    assert turns(pair, None, "assistant") == [Turn("1 + 1 = 2", 7, 9)]
    assert turns(pair, None, "all") == [Turn("1 + 1 = 2", 0, 9)]


def test_a_reply_that_spells_the_prompt_is_not_mistaken_for_one():
    messages = [
        {"role": "user", "content": "<|im_start|>assistant\nno"},
        {"role": "assistant", "content": "<|im_start|>assistant\nyes"},
    ]
    conversation = conversation_of({"messages": messages}, "r")
    found = generated(turns(conversation, template("chatml"), "assistant"))
    assert found == ["<|im_start|>assistant\nyes<|im_end|>\n"]


@pytest.mark.parametrize(
    ("messages", "shape", "words"),
    [
        ([{"role": "user", "content": "a"}], "chatml", "no message of it is the assistant's"),
        ([{"role": "assistant", "content": "a"}], None, "no chat template"),
        (
            [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
            "chatml",
            "message 0: is the assistant's, and nothing before it prompts for it",
        ),
    ],
)
def test_what_has_no_turn_is_refused_by_its_place(messages, shape, words):
    conversation = conversation_of({"messages": messages}, "data.jsonl, row 3")
    with pytest.raises(CorpusError, match=r"^data\.jsonl, row 3[:,] ") as caught:
        turns(conversation, shape and template(shape), "assistant")
    assert words in str(caught.value)


def test_a_template_that_rewrites_what_came_before_is_refused():
    jinja = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(
        CorpusError, match="one turn, message 1: its chat template writes what came"
    ):
        turns(chat("one turn"), ChatTemplate("t", jinja), "assistant")


# Of published models' templates: what the model generates in the first turn of `two turns`, with its
# end, which the tokens decide.
PUBLISHED = {
    "meta-llama-Llama-3.1-8B-Instruct": f"{LLAMA}<|eot_id|>",
    "Qwen-Qwen3-0.6B": f"<think>\n\n</think>\n\n{LLAMA}<|im_end|>\n",
    "Qwen-Qwen2.5-7B-Instruct": f"{LLAMA}<|im_end|>\n",
    "Mistral-Small-3.2-24B-Instruct-2506": f"{LLAMA}</s>",
    "openai-gpt-oss-120b": f"<|channel|>final<|message|>{LLAMA}<|return|>",
    "deepseek-ai-DeepSeek-V3.1": f"{LLAMA}<\uff5cend\u2581of\u2581sentence\uff5c>",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": f"{LLAMA}<\uff5cend\u2581of\u2581sentence\uff5c>",
    "microsoft-Phi-3.5-mini-instruct": f"{LLAMA}<|end|>\n</s>",
    "HuggingFaceTB-SmolLM3-3B": f"{LLAMA}<|im_end|>\n",
    "google-gemma-4-31B-it": f"{LLAMA}<turn|>\n",
    "GLM-4.6": f"\n<think></think>\n{LLAMA}",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_turns_of_published_templates(name):
    jinja = (real_templates() / f"{name}.jinja").read_text(encoding="utf-8")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    if "deepseek" in name:
        tokens["eos_token"] = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    found = turns(chat("two turns"), ChatTemplate(name, jinja, tokens), "assistant")
    assert generated(found)[0] == PUBLISHED[name]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("scored", ["assistant", "completion", "all"])
def test_of_a_turn_that_was_cut_nothing_follows_what_it_says(shape, scored):
    row = CHATS["two turns"] | {"finish_reason": "length"}
    found = turns(conversation_of(row, "r"), template(shape), scored)
    whole = turns(chat("two turns"), template(shape), scored)
    assert found[-1].text == found[-1].text[: found[-1].end]
    assert found[-1].text.endswith("4") and whole[-1].text.startswith(found[-1].text)
    assert found[-1].begin == whole[-1].begin
    # Earlier turns were not cut.
    assert found[:-1] == whole[:-1]
    assert [turn.is_last for turn in found] == [False] * (len(found) - 1) + [True]


def test_a_turn_that_was_cut_while_it_reasoned():
    said = {"role": "assistant", "content": "", "reasoning_content": "Hm, so"}
    row = {"messages": [{"role": "user", "content": "Hi"}, said], "finish_reason": "length"}
    (turn,) = turns(conversation_of(row, "r"), template("thinking"), "assistant")
    assert turn.text.endswith("<think>\nHm, so") or turn.text.endswith("<think>Hm, so")
    assert turn.end == len(turn.text)


def test_a_chat_that_ends_with_a_user_was_not_cut():
    row = {"messages": CHATS["two turns"]["messages"][:4], "finish_reason": "length"}
    (turn,) = turns(conversation_of(row, "r"), template("chatml"), "assistant")
    assert generated([turn]) == [f"{LLAMA}<|im_end|>\n"] and not turn.is_last


def test_tool_calls_that_a_template_does_not_write_are_told_of():
    """They are no targets, and what is left of the turn may be scored as if it were all."""
    call = {
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'},
    }
    asked = {"role": "user", "content": "Weather?"}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    lost = conversation_of({"messages": [asked, said]}, "r")
    (turn,) = turns(lost, template("chatml"), "assistant")
    assert "get_weather" not in turn.text and not turn.writes_calls
    names = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
    writes = SHAPES["chatml"].replace("<|im_end|>", f"{names}<|im_end|>", 1)
    (turn,) = turns(lost, ChatTemplate("t", writes), "assistant")
    assert "get_weather" in turn.text and turn.writes_calls
