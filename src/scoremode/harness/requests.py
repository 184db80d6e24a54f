"""Models as lm-evaluation-harness wants them, with what each of ours shares: prompts, and refusals.

This module and those that import it need the extra `lm-eval`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

from scoremode.errors import UsageError
from scoremode.harness.chat import ChatPrompts
from scoremode.text.task_requests import TextRequest

# A request: its context, None for a whole text, and the text that counts.
Key = tuple[str | None, str]


class ChatLM(LM):
    """A model that answers log-likelihoods alone, and writes prompts by its chat template."""

    def __init__(self, speaker: ChatPrompts):
        super().__init__()
        self.speaker = speaker

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.speaker.prompt(chat_history, prompts=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if isinstance(chat_template, str):
            raise UsageError(
                f"chat template {chat_template}: the model's default one is all that there is here"
            )
        return self.speaker.template.jinja if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        return self.speaker.name

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        raise refusal(request.task_name for request in requests)


def refusal(tasks: Iterable[str | None]) -> UsageError:
    """The error for tasks that want text to be generated."""
    names = ", ".join(sorted({name or "a request" for name in tasks}))
    return UsageError(
        f"{names}: generates text (generate_until), and scoremode scores log-likelihoods: leave it "
        "out, or run it with lm-evaluation-harness's own --model hf or vllm"
    )


def key_of(request: Any) -> Key:
    """The context and text of one of the harness's requests; `loglikelihood_rolling` has a text
    alone."""
    *context, text = request.args
    return (context[0] if context else None, text)


def text_requests(requests: Iterable[Any]) -> list[TextRequest]:
    """The harness's requests as ours; one that is of no task counts as a question of its own."""
    found = []
    for i, request in enumerate(requests):
        context, text = key_of(request)
        question = i if request.doc_id is None else request.doc_id
        task = request.task_name or "requests"
        found.append(TextRequest(task, question, request.idx, context, text))
    return found


def answer_of(request: Any, answers: Mapping[Key, tuple[float, bool]]) -> tuple[float, bool]:
    """The log-likelihood in nats, and whether it is what greedy decoding says. Raises UsageError for a
    request that nobody asked before."""
    try:
        return answers[key_of(request)]
    except KeyError:
        raise UsageError(
            f"{request.task_name}: asks other questions the second time: its prompts are not made by a "
            "seed"
        ) from None
