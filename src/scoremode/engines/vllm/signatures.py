"""The parts of vLLM that the plugin relies on, checked against its source before they are used.

Each line names a class or function and what it must have. The check reads source files and imports
nothing, so it serves the installed vLLM at load as well as an unpacked wheel of a release that can't
run on a machine (`python -m scoremode.engines.vllm.signatures FOLDER…`).
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["REQUIREMENTS", "Requirement", "check_signatures", "v2_scores"]


@dataclass(frozen=True)
class Requirement:
    """`name` in `file` has `members`: methods and fields of a class, parameters of a function.

    A name with a dot is a method.
    """

    file: str
    name: str
    members: tuple[str, ...]


_V1 = "v1/worker/gpu_model_runner.py"
REQUIREMENTS = (
    Requirement(
        "model_executor/layers/pooler/abstract.py",
        "Pooler",
        ("get_supported_tasks", "get_pooling_updates", "forward"),
    ),
    Requirement(
        "model_executor/layers/pooler/abstract.py",
        "Pooler.forward",
        ("hidden_states", "pooling_metadata"),
    ),
    Requirement(
        "model_executor/layers/pooler/common.py", "PoolingParamsUpdate", ("requires_token_ids",)
    ),
    Requirement(
        "v1/pool/metadata.py",
        "PoolingMetadata",
        (
            "prompt_lens",
            "prompt_token_ids_cpu",
            "pooling_params",
            "pooling_states",
            "get_pooling_cursor",
        ),
    ),
    Requirement(
        "v1/pool/metadata.py", "PoolingCursor", ("seq_lens_cpu", "num_scheduled_tokens_cpu")
    ),
    Requirement("v1/pool/metadata.py", "PoolingStates", ("clean",)),
    Requirement("pooling_params.py", "PoolingParams", ("task", "extra_kwargs")),
    Requirement(
        "model_executor/layers/logits_processor.py",
        "LogitsProcessor.forward",
        ("lm_head", "hidden_states"),
    ),
    Requirement(
        "model_executor/layers/logits_processor.py", "LogitsProcessor._gather_logits", ("logits",)
    ),
    Requirement(
        "model_executor/layers/vocab_parallel_embedding.py",
        "UnquantizedEmbeddingMethod",
        ("process_weights_after_loading", "apply"),
    ),
    Requirement(
        "model_executor/layers/vocab_parallel_embedding.py",
        "UnquantizedEmbeddingMethod.apply",
        ("layer", "x", "bias"),
    ),
    Requirement("model_executor/models/registry.py", "_ModelRegistry", ("models",)),
    Requirement(
        "model_executor/models/registry.py",
        "_LazyRegisteredModel",
        ("inspect_model_cls", "load_model_cls"),
    ),
    Requirement(
        "model_executor/models/registry.py",
        "_ModelInfo",
        (
            "is_text_generation_model",
            "is_pooling_model",
            "default_seq_pooling_type",
            "default_tok_pooling_type",
        ),
    ),
    Requirement(
        "model_executor/models/interfaces_base.py", "VllmModelForPooling", ("is_pooling_model",)
    ),
    Requirement(
        "entrypoints/pooling/offline.py",
        "PoolingOfflineMixin.encode",
        ("prompts", "pooling_params", "use_tqdm", "pooling_task"),
    ),
    Requirement("config/parallel.py", "ParallelConfig", ("worker_extension_cls",)),
    Requirement("config/vllm.py", "VllmConfig", ("additional_config",)),
    Requirement(_V1, "GPUModelRunner._pool", ("hidden_states", "num_scheduled_tokens_np")),
    Requirement(_V1, "GPUModelRunner", ("get_model", "_dummy_pooler_run")),
)


def check_signatures(root: Path) -> list[str]:
    """Lists what the vLLM package in the folder `root` lacks of what the plugin needs, a line each."""
    problems = []
    for wanted in REQUIREMENTS:
        members = _members(root / wanted.file, wanted.name)
        if members is None:
            problems.append(f"vllm/{wanted.file} has no {wanted.name}")
            continue
        for missing in sorted(set(wanted.members) - members):
            problems.append(f"{wanted.name} in vllm/{wanted.file} has no {missing}")
    return problems


def v2_scores(root: Path) -> bool:
    """Tells whether the V2 runner of vLLM in `root` hands a decoder's tokens to a model's own pooler.

    Before 0.27 it normalized the last hidden state and knew no other pooling; 0.27 pools the tokens
    of encoders only.
    """
    tree = _parse(root / "v1/worker/gpu/pool/pooling_runner.py")
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)} if tree else set()
    return "token_classify" in words and "encoder_only" not in words


def _members(file: Path, name: str) -> set[str] | None:
    tree = _parse(file)
    if tree is None:
        return None
    owner, _, method = name.partition(".")
    classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    if owner not in classes:
        return None
    if not method:
        return set(_class_members(classes[owner]))
    for node in classes[owner].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method:
            return {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    return None


def _class_members(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.Assign):
            yield from (t.id for t in child.targets if isinstance(t, ast.Name))


@cache
def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def main(folders: list[str]) -> int:
    """Prints what each folder's vLLM lacks; 1 if any lacks something."""
    failed = False
    for folder in folders:
        problems = check_signatures(Path(folder))
        failed |= bool(problems)
        runner = "pools" if v2_scores(Path(folder)) else "does not pool tokens"
        print(f"{folder}: {'; '.join(problems) or 'all there'}; the V2 runner {runner}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
