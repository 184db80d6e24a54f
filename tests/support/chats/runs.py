"""A tiny model that has a chat template, conversations for it, and transformers' own view of them."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from scoremode.results.folders.store import read_columns
from scoremode.results.scores import Scores

__all__ = ["MARKED", "TEMPLATE", "chat_model", "expected_targets", "in_file_order", "logprobs",
           "write_rows"]  # fmt: skip

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


def in_file_order(folder: Path) -> tuple[Scores, dict[str, NDArray[Any]]]:
    """The Scores of a run and the columns beside them, conversation by conversation: they are scored in
    another order."""
    scores, extras = read_columns(folder / "scores.parquet")
    order = np.argsort(scores.index)
    columns = {name: column[order] for name, column in scores.columns().items()}
    return Scores.from_columns(columns), {name: column[order] for name, column in extras.items()}
