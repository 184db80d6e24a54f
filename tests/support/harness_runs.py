"""lm-evaluation-harness in tests: its own hf backend, ours, and what they answer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["NEEDED", "answers", "evaluated", "tiny_gpt2", "with_template"]

NEEDED = "needs the extra lm-eval: make test-tasks"
# Says who speaks, and begins with the BOS token, as Llama's templates do.
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content|trim + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def evaluated(model: Any, folder: Path, tasks: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """What the harness makes of a model's answers to tasks in `folder`."""
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(
        model=model, tasks=list(tasks), task_manager=manager, bootstrap_iters=10, **more
    )


def answers(results: Mapping[str, Any]) -> Iterator[tuple[str, float, bool | None]]:
    """(request, log-likelihood, is greedy) of all requests, None for whole texts."""
    for task, samples in sorted(results["samples"].items()):
        for sample in samples:
            for i, ((response,), arguments) in enumerate(
                zip(sample["resps"], sample["arguments"], strict=True)
            ):
                name = f"{task} {sample['doc_id']} {i} {arguments}"
                if isinstance(response, tuple):
                    yield name, *response
                else:
                    yield name, response, None


def with_template(model: Path, folder: Path) -> Path:
    """A model's folder with a chat template."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder


def tiny_gpt2(tokenizer: Path, folder: Path) -> Path:
    """A GPT-2 of two layers that reads 96 tokens at a time, with that tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_positions=96, n_embd=32, n_layer=2, n_head=2, vocab_size=50257)
    GPT2LMHeadModel(config).to(torch.float32).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", '
        '"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "model_max_length": 96}'
    )
    return folder


@pytest.fixture(scope="session")
def local_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the local tasks, their data sets' cache beside it."""
    datasets = pytest.importorskip("datasets", reason=NEEDED)
    from support.local_tasks import write_tasks

    folder = tmp_path_factory.mktemp("lm_eval")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield write_tasks(folder / "tasks")
