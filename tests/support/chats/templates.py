"""Chat templates of the shapes that models have, and conversations for them."""

import os
from pathlib import Path
from typing import Any

import pytest

from scoremode.text.conversations.messages import Conversation, conversation_of

__all__ = ["CHATS", "SHAPES", "chat", "real_templates"]

# A turn as ChatML has it; each shape differs from it in what matters to find what was generated.
CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "chatml": CHATML,
    # Reasoning stays in the last turn alone.
    "thinking": (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content or '' }}"
        "\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n"
        "{%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
        "{% endif %}"
    ),
    # The last turn ends with another token than earlier ones.
    "harmony": (
        "{%- for m in messages %}<|im_start|>{{ m.role }}<|fim_middle|>{{ m.content }}"
        "{%- if m.role == 'assistant' and loop.last and not add_generation_prompt %}<|endoftext|>"
        "{%- else %}<|im_end|>{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    ),
    # The prompt for a reply has what no turn has.
    "r1": (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
    # No token ends a turn.
    "open": (
        "{%- for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
        "{%- if add_generation_prompt %}[assistant]{% endif %}"
    ),
    # What is generated is marked, without the token that ends the turn.
    "marked": (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{%- else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    ),
    # A space that a reply's first token takes in.
    "spaced": (
        "{%- for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{%- if add_generation_prompt %}assistant: {% endif %}"
    ),
}
CHATS: dict[str, dict[str, Any]] = {
    "two turns": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi <b>"},
            {"role": "assistant", "content": "Hello! \u00e9\U0001f999"},
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4", "reasoning": "simple"},
        ]
    },
    "one turn": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!\n\nHow are you?\n"},
        ]
    },
    "a tool": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "abcdefghi",
                        "type": "function",
                        "function": {"name": "w", "arguments": '{"c": "Rome"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "w", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "w",
                    "description": "x",
                    "parameters": {"type": "object", "properties": {"c": {"type": "string"}}},
                },
            }
        ],
    },
}


def chat(name: str) -> Conversation:
    return conversation_of(CHATS[name], name)


def real_templates() -> Path:
    """The folder of published models' templates in llama.cpp's source."""
    folder = os.environ.get("SCOREMODE_LLAMA_CPP")
    if not folder:
        pytest.skip("needs llama.cpp's source: set SCOREMODE_LLAMA_CPP (tools/llama_cpp.py)")
    return Path(folder) / "source" / "models" / "templates"
