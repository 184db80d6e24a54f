"""Chat templates in the structures that published families have, and chats with all that they write.

Written anew and short: where a turn begins, what its prompt has, which parts are marked as generated
and what ends it are as there.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["STRUCTURES", "TALKS", "Structure"]


@dataclass(frozen=True)
class Structure:
    """A template; `ends`: tokens at which its models stop, `specials`: others that it writes;
    `arguments`: values for it."""

    jinja: str
    ends: tuple[str, ...] = ("<|im_end|>",)
    specials: tuple[str, ...] = ("<|im_start|>", "<think>", "</think>", "<tool_call>",
                                 "</tool_call>")  # fmt: skip
    arguments: dict[str, Any] = field(default_factory=dict)


def _chatml(assistant: str, prompt: str = "") -> str:
    """ChatML whose assistant turns are `assistant`, behind whose prompt more may stand."""
    return (
        "{% for m in messages %}{% if m.role == 'assistant' %}" + assistant + "{% else %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )


_GEN, _END = "{% generation %}", "{% endgeneration %}"
_CALLS = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
)
_XML = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n<function={{ c.function.name }}>"
    "{% for k, v in c.function.arguments | items %}\n<parameter={{ k }}>\n{{ v }}\n</parameter>"
    "{% endfor %}\n</function>\n</tool_call>{% endfor %}"
)
_THOUGHT = "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
_HEADER = "<|im_start|>assistant\n"
_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")

# What nothing marks: a turn is what stands behind its prompt.
_PLAIN = {
    "hermes": Structure(_chatml(f"{_HEADER}{{{{ m.content }}}}{_CALLS}<|im_end|>\n")),
    "qwen 3 coder": Structure(_chatml(f"{_HEADER}{{{{ m.content }}}}{_XML}<|im_end|>\n")),
    "llama 3 with tools": Structure(
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>"
        "{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}<|python_tag|>"
        '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
        "{% endfor %}<|eom_id|>{% else %}{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        ("<|eot_id|>", "<|eom_id|>"),
        _LLAMA,
    ),
    "mistral with tools": Structure(
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
        "{% elif m.tool_calls %}{{ m.content }}{% for c in m.tool_calls %}[TOOL_CALLS]"
        "{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
        ("</s>",),
        ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "harmony with tools": Structure(
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% if m.reasoning_content and loop.last and not add_generation_prompt %}"
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant to=functions."
        "{{ c.function.name }}<|channel|>commentary json<|message|>"
        "{{ c.function.arguments | tojson }}<|call|>{% endfor %}"
        "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
        "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|return|>", "<|call|>"),
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
    ),
    "deepseek r1 with tools": Structure(
        "<|bos|>{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{% elif m.role == 'system' %}{{ m.content }}{% elif m.role == 'tool' %}"
        "<|output|>{{ m.content }}<|/output|>{% else %}<|Assistant|>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<|call|>{{ c.function.name }}\n```json\n"
        "{{ c.function.arguments | tojson }}\n```<|/call|>{% endfor %}<|eos|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}",
        ("<|eos|>",),
        (
            "<|bos|>",
            "<|User|>",
            "<|Assistant|>",
            "<|call|>",
            "<|/call|>",
            "<|output|>",
            "<|/output|>",
        ),
    ),
    # No token ends a turn: the next speaker's does.
    "glm 4.5": Structure(
        "[gMASK]<sop>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n"
        "<think>{{ m.reasoning_content if loop.last else '' }}</think>\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}"
        "{% for k, v in c.function.arguments | items %}\n<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v }}</arg_value>{% endfor %}\n</tool_call>{% endfor %}"
        "{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}"
        "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ("<|user|>", "<|observation|>", "<|endoftext|>"),
        ("[gMASK]", "<sop>", "<|assistant|>", "<|system|>", "<think>", "</think>"),
    ),
    "kimi k2": Structure(
        "{% for m in messages %}<|im_{{ m.role }}|>{{ m.name or m.role }}<|im_middle|>{{ m.content }}"
        "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
        "<|tool_call_begin|>functions.{{ c.function.name }}:{{ loop.index0 }}"
        "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        "<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
        specials=(
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_middle|>",
            "<|tool_calls_section_begin|>",
        ),
    ),
    "olmo 2": Structure(
        "<|endoftext|>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% if m.role == 'assistant' %}<|endoftext|>{% endif %}{{ '' if loop.last else '\n' }}"
        "{% endfor %}{{ '\n<|assistant|>\n' if add_generation_prompt else '' }}",
        ("<|endoftext|>",),
        (),
    ),
    "granite 3": Structure(
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}"
        "<|end_of_text|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
        ("<|end_of_text|>",),
        ("<|start_of_role|>", "<|end_of_role|>"),
    ),
    "phi 3": Structure(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}",
        ("<|end|>", "<|endoftext|>"),
        ("<|user|>", "<|assistant|>", "<|system|>"),
    ),
    "command r": Structure(
        "{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ m.role | upper }}_TOKEN|>{{ m.content }}"
        "<|END_OF_TURN_TOKEN|>{% endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|ASSISTANT_TOKEN|>{% endif %}",
        ("<|END_OF_TURN_TOKEN|>",),
        ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|ASSISTANT_TOKEN|>"),
    ),
    # The prompt ends with a blank that a reply's first token takes in.
    "vicuna": Structure(
        "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}"
        "{{ '</s>' if m.role == 'assistant' else '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT: {% endif %}",
        ("</s>",),
        (),
    ),
}
_MARKED = {
    # Around the header, of which the prompt has all, with what keeps the model from thinking.
    "smollm3": Structure(
        _chatml(f"{_GEN}{_HEADER}{{{{ m.content }}}}<|im_end|>\n{_END}", ""),
    ),
    "smollm3 that doesn't think": Structure(
        _chatml(
            f"{_GEN}{_HEADER}<think>\n\n</think>\n{{{{ m.content }}}}<|im_end|>\n{_END}",
            "<think>\n\n</think>\n",
        ),
    ),
    # Around the header and a reasoning that the model itself begins: 7 tokens a turn are the prompt's.
    "header and reasoning": Structure(
        _chatml(f"{_GEN}{_HEADER}{_THOUGHT}{{{{ m.content }}}}<|im_end|>{_END}")
    ),
    # Within the header.
    "half of the header": Structure(
        _chatml(f"<|im_start|>{_GEN}assistant\n{{{{ m.content }}}}<|im_end|>{_END}\n")
    ),
    "reasoning and answer apart": Structure(
        _chatml(
            f"{_HEADER}<think>\n{_GEN}{{{{ m.reasoning_content or '' }}}}{_END}\n</think>\n\n"
            f"{_GEN}{{{{ m.content }}}}<|im_end|>{_END}\n"
        )
    ),
    "content, then calls, then the end": Structure(
        _chatml(
            f"{_HEADER}{_GEN}{{{{ m.content }}}}{_END}{{% if m.tool_calls %}}{_GEN}{_CALLS}{_END}"
            f"{{% endif %}}{_GEN}<|im_end|>{_END}\n"
        )
    ),
    "the calls alone unmarked": Structure(
        _chatml(f"{_HEADER}{_GEN}{{{{ m.content }}}}{_END}{_CALLS}<|im_end|>\n")
    ),
    "calls alone marked": Structure(
        _chatml(
            f"{_HEADER}{{{{ m.content }}}}{{% if m.tool_calls %}}{_GEN}{_CALLS}<|im_end|>{_END}"
            "{% else %}<|im_end|>{% endif %}\n"
        )
    ),
    "some turns": Structure(
        _chatml(
            f"{_HEADER}{{% if m.content | length is odd %}}{_GEN}{{{{ m.content }}}}<|im_end|>{_END}"
            "{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
        )
    ),
    # Two messages of ChatML to a turn, each with its own end.
    "a message for each part": Structure(
        _chatml(
            "{% if m.reasoning_content %}<|im_start|>assistant\n"
            f"{_GEN}{{{{ m.reasoning_content }}}}<|im_end|>{_END}\n{{% endif %}}"
            f"{_HEADER}{_GEN}{{{{ m.content }}}}<|im_end|>{_END}\n"
        )
    ),
    "llama 3 without the end": Structure(
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        f"{{% if m.role == 'assistant' %}}{_GEN}{{{{ m.content }}}}{_END}"
        "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        ("<|eot_id|>", "<|eom_id|>"),
        _LLAMA,
    ),
    # No prompt, no header, no end: two turns may have nothing between them.
    "bare": Structure(
        f"{{% for m in messages %}}{{% if m.role == 'assistant' %}}{_GEN}{{{{ m.content }}}}{_END}"
        "{% else %}\n<{{ m.role }}>{{ m.content }}\n{% endif %}{% endfor %}",
        (),
        (),
    ),
    # What a mark ends with lies in one token with what follows it.
    "an end like the text": Structure(
        "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' %}"
        f"{_GEN}{{{{ m.content }}}}{_END}{{{{ '\\n--\\n' }}}}"
        "{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}",
        (),
        (),
    ),
    # Gemma's, marked as people do for training; what it drops of the past it drops in the mark.
    "gemma without earlier thoughts": Structure(
        "<bos>{% for m in messages %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        f"{{% if m.role == 'assistant' %}}{_GEN}{{% if loop.last and m.reasoning_content %}}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<end_of_turn>"
        f"{_END}{{% else %}}{{{{ m.content }}}}<end_of_turn>{{% endif %}}\n{{% endfor %}}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        ("<end_of_turn>",),
        ("<bos>", "<start_of_turn>"),
    ),
}
STRUCTURES = _PLAIN | _MARKED


def _call(name: str, **arguments: object) -> dict[str, Any]:
    return {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _said(content: str, reasoning: str | None = None, *calls: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message |= {"reasoning_content": reasoning, "thinking": reasoning}
    return message | ({"tool_calls": list(calls)} if calls else {})


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


TALKS: dict[str, list[dict[str, Any]]] = {
    "thoughts": [
        {"role": "system", "content": "Be brief."},
        _user("Hi <b>"),
        _said("Hello! é\U0001f999"),
        _user("2 + 2?"),
        _said("4", "simple"),
    ],
    "tools": [
        _user("Weather?"),
        _said("Let me look.", "Rome, then.", _call("w", c="Rome"), _call("w", c="Bari", n=2)),
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "w", "content": "sunny"},
        _said("", None, _call("v")),
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "v", "content": "so so"},
        _said("Sunny.\n\nAnd\twarm.\n"),
    ],
    "nothing between": [_user("Go on"), _said("One."), _said("Two"), _user("and"), _said("three!")],
    "it begins": [
        _said("Hello there."),
        _user("hi"),
        _said("What may I do?"),
        _user("?"),
        _said("A"),
    ],
    "it ends early": [
        _user("a"),
        _said("b<|im_end|>c</s>d<|eot_id|>e<|end|>"),
        _user("f"),
        _said("g"),
    ],
    "it spells its header": [
        _user("a"),
        _said("<|im_start|>assistant\nb"),
        _user("c"),
        _said("dd", "e"),
    ],
}
