<<<<<<< HEAD
"""A tiny model that has a chat template, conversations for it, and transformers' own view of them."""

import json
import shutil
from functools import cache
=======
"""Made runs over conversations: windows of unequal length, with gaps between scored targets."""

>>>>>>> 6c41d5c (Conversations are blocks wherever intervals are made, and drawn whole)
from pathlib import Path
from typing import Any

import numpy as np
<<<<<<< HEAD
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

__all__ = ["MARKED", "TEMPLATE", "chat_model", "expected_targets", "logprobs", "write_rows"]

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
# The same text, with transformers' own marks around what the model generated.
MARKED = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
)


def chat_model(demo: Path, folder: Path, template: str = TEMPLATE) -> Path:
    """A copy of the demo's model with a chat template."""
    shutil.copytree(demo / "model", folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def write_rows(demo: Path, file: Path, count: int = 12) -> list[dict[str, Any]]:
    """Writes `count` conversations of one to three turns, in three domains, of unequal lengths."""
    words = (demo / "heldout.txt").read_text(encoding="utf-8").split()
    rng, rows, at = np.random.default_rng(5), [], 0
    for i in range(count):
        messages = [{"role": "system", "content": "Answer."}] if i % 3 == 0 else []
        for _ in range(1 + i % 3):
            for role in ("user", "assistant"):
                n = int(rng.integers(2, 12))
                messages.append({"role": role, "content": " ".join(words[at : at + n])})
                at += n
        rows.append({"messages": messages, "domain": ("code", "math", "talk")[i % 3]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def expected_targets(
    model: Path, rows: list[dict[str, Any]]
) -> list[tuple[list[int], NDArray[np.int64]]]:
    """Of each conversation its ids and the positions of what the assistant generated, both by
    transformers."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = []
    for row in rows:
        made = tokenizer.apply_chat_template(
            row["messages"],
            chat_template=MARKED,
            return_assistant_tokens_mask=True,
            return_dict=True,
        )
        found.append((made["input_ids"], np.flatnonzero(made["assistant_masks"])))
    return found


@cache
def _loaded(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def logprobs(model: Path, ids: list[int], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 [n, V]: transformers' log-probabilities, in float32, from which the tokens at `positions`
    are predicted."""
    with torch.no_grad():
        logits = _loaded(model)(torch.tensor([ids])).logits[0]
    return logits[torch.from_numpy(positions - 1)].double().log_softmax(-1).numpy()
=======
from comparisons import made
from run_folders import write_run

from scoremode.results.scores import Scores
from scoremode.results.statistics import bootstrap

# Windows of each conversation, some of several; their places among those that were read have gaps.
WINDOWS = [1, 2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 4, 1, 1]
NUMBERS = np.array([0, 1, 3, 4, 5, 8, 9, 10, 11, 15, 16, 17, 20, 21, 22, 30], np.int32)


def chat_places(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """`window`, `position` and `index` of all targets, and the conversation that each is of.

    Windows are in another order than conversations, as they are scored.
    """
    rng, rows, begin = np.random.default_rng(seed), [], 0
    windows = np.repeat(NUMBERS, WINDOWS)
    order = rng.permutation(len(windows))
    starts = np.zeros(len(windows), np.int64)
    lengths = rng.integers(6, 300, len(windows))
    for w in range(len(windows)):
        starts[w], begin = begin, begin + int(lengths[w])
    for number, w in enumerate(order):
        positions = 1 + np.flatnonzero(rng.random(lengths[w] - 1) < 0.6)
        if not len(positions):
            positions = np.array([1])
        rows += [(number, p, starts[w] + p, windows[w]) for p in positions]
    window, position, index, conversation = np.array(rows).T
    places = {"window": window, "position": position, "index": index}
    return places, conversation.astype(np.int32)


def chat_scores(noise: float, seed: int = 0) -> tuple[Scores, np.ndarray]:
    """Scores of `chat_places`, the worse the larger `noise`, and the conversation of each target."""
    places, conversation = chat_places()
    return made(**places, noise=noise, seed=seed, full=False), conversation


def write_chat_run(
    folder: Path, noise: float, seed: int = 0, changes: dict[str, Any] | None = None
) -> Path:
    """A finished run of `chat_scores` in `folder`."""
    scores, conversation = chat_scores(noise, seed)
    usual = {
        "protocol.name": "chat",
        "protocol.text": "conversations",
        "protocol.long": "truncate",
        "plan.conversations": len(NUMBERS),
    }
    return write_run(
        folder,
        scores,
        extras={"conversation": conversation},
        changes=usual | (changes or {}),
    )


def resampled_by_hand(values: np.ndarray, conversation: np.ndarray) -> np.ndarray:
    """The mean of `values` in resamples of whole conversations, one after the other."""
    chats = [values[conversation == number] for number in sorted(set(conversation.tolist()))]
    rng = np.random.default_rng(20_481)
    drawn = rng.integers(len(chats), size=(10_000, len(chats)))
    sums, counts = (np.array([f(c) for c in chats]) for f in (np.sum, len))
    return np.array([sums[d].sum() / counts[d].sum() for d in drawn])


def ends_by_hand(means: np.ndarray, blocks: int) -> list[float]:
    """The 95 % interval of resampled means."""
    tail = bootstrap._expanded_tail(blocks)
    return [float(np.quantile(means, share)) for share in (tail, 1 - tail)]
>>>>>>> 6c41d5c (Conversations are blocks wherever intervals are made, and drawn whole)
