"""Chat templates as eight families of models have them, written anew and short.

Where a turn begins, what the prompt for it has, and which token ends it are as there.
"""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from scoremode.text.tokenizer import Tokenizer as OurTokenizer
from scoremode.text.tokenizer import load_tokenizer

__all__ = ["FAMILIES", "Family", "with_specials"]

HELLO = "Hello! \u00e9\U0001f999"
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"


@dataclass(frozen=True)
class Family:
    """A family's template.

    - `ends`: tokens at which its models stop; `specials`: others that it writes.
    - `said`: what the model generates of `two turns` (`chat_templates.CHATS`), a text a turn.
    - `counts`: tokens of all texts, and targets, with Qwen 2's vocabulary.
    - `apart`: turns with a text of their own, since a later text has them otherwise.
    """

    jinja: str
    ends: tuple[str, ...]
    specials: tuple[str, ...]
    said: tuple[str, str]
    counts: tuple[int, int]
    apart: int = 0
    arguments: tuple[tuple[str, object], ...] = ()


_QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
_TURN = "{% for m in messages %}{% if m.role == 'system' %}"
FAMILIES = {
    "llama 3": Family(
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        ("<|eot_id|>", "<|eom_id|>"),
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        (f"{HELLO}<|eot_id|>", "4<|eot_id|>"),
        (43, 7),
    ),
    "qwen 3 that thinks": Family(
        _QWEN3,
        ("<|im_end|>", "<|endoftext|>"),
        ("<|im_start|>", "<think>", "</think>"),
        (
            f"<think>\n\n</think>\n\n{HELLO}<|im_end|>",
            "<think>\nsimple\n</think>\n\n4<|im_end|>",
        ),
        (76, 17),
        apart=1,
    ),
    "qwen 3 that doesn't": Family(
        _QWEN3.replace("m.reasoning_content or ''", "''"),
        ("<|im_end|>", "<|endoftext|>"),
        ("<|im_start|>", "<think>", "</think>"),
        (f"{HELLO}<|im_end|>", "4<|im_end|>"),
        (74, 7),
        apart=1,
        arguments=(("enable_thinking", False),),
    ),
    "gemma 3": Family(
        "{{ bos_token }}{% for m in messages if m.role != 'system' %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        ("<eos>", "<end_of_turn>"),
        ("<bos>", "<start_of_turn>"),
        (f"{HELLO}<end_of_turn>", "4<end_of_turn>"),
        (37, 7),
    ),
    "mistral": Family(
        f"{{{{ bos_token }}}}{_TURN}[SYSTEM_PROMPT]{{{{ m.content }}}}[/SYSTEM_PROMPT]"
        "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        ("</s>",),
        ("<s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]"),
        (f"{HELLO}</s>", "4</s>"),
        (26, 7),
    ),
    "gpt-oss": Family(
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% if loop.last and not add_generation_prompt and m.thinking %}"
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
        "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|return|>", "<|call|>"),
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        (
            f"<|channel|>final<|message|>{HELLO}<|return|>",
            "<|channel|>analysis<|message|>simple<|end|><|start|>assistant"
            "<|channel|>final<|message|>4<|return|>",
        ),
        (73, 20),
        apart=1,
    ),
    "deepseek v3.1": Family(
        f"{{{{ bos_token }}}}{_TURN}{{{{ m.content }}}}"
        f"{{% elif m.role == 'user' %}}{USER}{{{{ m.content }}}}"
        f"{{% else %}}{ASSISTANT}</think>{{{{ m.content }}}}{EOS}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{ASSISTANT}</think>{{% endif %}}",
        (EOS,),
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", USER, ASSISTANT, "<think>", "</think>"),
        (f"{HELLO}{EOS}", f"4{EOS}"),
        (26, 7),
    ),
    "deepseek r1": Family(
        f"{{{{ bos_token }}}}{_TURN}{{{{ m.content }}}}"
        f"{{% elif m.role == 'user' %}}{USER}{{{{ m.content }}}}"
        f"{{% else %}}{ASSISTANT}{{{{ m.content.split('</think>')[-1] }}}}{EOS}{{% endif %}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{ASSISTANT}<think>\n{{% endif %}}",
        (EOS,),
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", USER, ASSISTANT, "<think>", "</think>"),
        (f"{HELLO}{EOS}", f"4{EOS}"),
        (24, 7),
    ),
    "phi 4": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
        ("<|im_end|>",),
        ("<|im_start|>", "<|im_sep|>"),
        (f"{HELLO}<|im_end|>", "4<|im_end|>"),
        (37, 7),
    ),
    "chatml": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
        ("<|im_start|>",),
        (f"{HELLO}<|im_end|>", "4<|im_end|>"),
        (41, 7),
    ),
}


def with_specials(folder: Path, target: Path) -> OurTokenizer:
    """A tokenizer with all families' special tokens as well, written to the folder `target`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = {s for family in FAMILIES.values() for s in (*family.ends, *family.specials)}
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in sorted(names)])
    target.mkdir(exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    return load_tokenizer(target)
