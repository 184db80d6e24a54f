"""The parts of vLLM that the plugin relies on, checked against its source before they are used.

Each line names a class or function and what it must have. The check reads source files and imports
nothing, so it serves the installed vLLM at load as well as an unpacked wheel of a release that can't
run on a machine (`python -m scoremode.engines.vllm.signatures FOLDER…`).
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

# File → class or method → names that it must have: methods and fields of a class, parameters of a
# method.
REQUIREMENTS = {
    "model_executor/layers/pooler/abstract.py": {
        "Pooler": "get_supported_tasks get_pooling_updates forward",
        "Pooler.forward": "hidden_states pooling_metadata",
    },
    "model_executor/layers/pooler/common.py": {"PoolingParamsUpdate": "requires_token_ids"},
    "v1/pool/metadata.py": {
        "PoolingMetadata": (
            "prompt_lens prompt_token_ids_cpu pooling_params pooling_states get_pooling_cursor"
        ),
        "PoolingCursor": "seq_lens_cpu num_scheduled_tokens_cpu",
        "PoolingStates": "clean",
    },
    "pooling_params.py": {"PoolingParams": "task extra_kwargs"},
    "model_executor/layers/logits_processor.py": {
        "LogitsProcessor.forward": "lm_head hidden_states",
        "LogitsProcessor._gather_logits": "logits",
    },
    "model_executor/layers/vocab_parallel_embedding.py": {
        "UnquantizedEmbeddingMethod": "process_weights_after_loading apply",
        "UnquantizedEmbeddingMethod.apply": "layer x bias",
    },
    "model_executor/models/registry.py": {
        "_ModelRegistry": "models",
        "_LazyRegisteredModel": "inspect_model_cls load_model_cls",
        "_ModelInfo": (
            "is_text_generation_model is_pooling_model default_seq_pooling_type "
            "default_tok_pooling_type"
        ),
    },
    "model_executor/models/interfaces_base.py": {"VllmModelForPooling": "is_pooling_model"},
    "entrypoints/pooling/offline.py": {
        "PoolingOfflineMixin.encode": "prompts pooling_params use_tqdm pooling_task"
    },
    "config/parallel.py": {"ParallelConfig": "worker_extension_cls"},
    "config/vllm.py": {"VllmConfig": "additional_config"},
    "v1/worker/gpu_model_runner.py": {
        "GPUModelRunner._pool": "hidden_states num_scheduled_tokens_np",
        "GPUModelRunner": "get_model _dummy_pooler_run",
    },
}

# What scoring decode steps needs, of both runners.
DECODING = {
    "v1/core/sched/output.py": {
        "SchedulerOutput": (
            "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens finished_req_ids"
        ),
        "NewRequestData": "req_id sampling_params num_computed_tokens",
        "CachedRequestData": "req_ids num_computed_tokens",
    },
    "sampling_params.py": {
        "SamplingParams": "temperature max_tokens ignore_eos detokenize extra_args"
    },
    "v1/worker/gpu_input_batch.py": {"InputBatch": "req_ids"},
    "v1/worker/gpu_model_runner.py": {
        "GPUModelRunner": "get_model",
        "GPUModelRunner.execute_model": "scheduler_output",
    },
    "v1/worker/gpu/input_batch.py": {"InputBatch": "req_ids logits_indices"},
    "v1/worker/gpu/model_runner.py": {
        "GPUModelRunner": "get_model",
        "GPUModelRunner.execute_model": "scheduler_output",
        "GPUModelRunner.sample": "hidden_states input_batch",
    },
    **{
        file: REQUIREMENTS[file]
        for file in (
            "model_executor/layers/logits_processor.py",
            "model_executor/layers/vocab_parallel_embedding.py",
            "config/parallel.py",
        )
    },
}

Requirements = Mapping[str, Mapping[str, str]]


def check_signatures(root: Path, requirements: Requirements | None = None) -> list[str]:
    """Lists what the vLLM package in the folder `root` lacks of `requirements`, a line each; by default
    of the pooler's."""
    problems = []
    for file, classes in (requirements or REQUIREMENTS).items():
        found = _members(root / file)
        for name, wanted in classes.items():
            if name not in found:
                problems.append(f"vllm/{file} has no {name}")
                continue
            missing = sorted(set(wanted.split()) - found[name])
            problems += [f"{name} in vllm/{file} has no {member}" for member in missing]
    return problems


def v2_scores(root: Path) -> bool:
    """Tells whether the V2 runner of vLLM in `root` hands a decoder's tokens to a model's own pooler.

    Before 0.27 it normalized the last hidden state and knew no other pooling; 0.27 pools the tokens
    of encoders only.
    """
    nodes = _nodes(root / "v1/worker/gpu/pool/pooling_runner.py")
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return "token_classify" in words and "encoder_only" not in words


def _members(file: Path) -> dict[str, set[str]]:
    """Members of every `Class` in a source file, and parameters of every `Class.method`."""
    found: dict[str, set[str]] = {}
    for owner in _nodes(file):
        if not isinstance(owner, ast.ClassDef):
            continue
        members = found[owner.name] = set()
        for child in owner.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                members.add(child.name)
                a = child.args
                parameters = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)}
                found.setdefault(f"{owner.name}.{child.name}", parameters)
            elif isinstance(child, ast.AnnAssign | ast.Assign):
                targets = [child.target] if isinstance(child, ast.AnnAssign) else child.targets
                members.update(t.id for t in targets if isinstance(t, ast.Name))
    return found


def _nodes(file: Path) -> Iterator[ast.AST]:
    """The syntax tree of a source file, node by node; none of one that is not there."""
    if file.exists():
        yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def main(folders: list[str]) -> int:
    """Prints what each folder's vLLM lacks; 1 if any lacks something."""
    failed = False
    for folder in folders:
        root = Path(folder)
        problems, decoding = check_signatures(root), check_signatures(root, DECODING)
        failed |= bool(problems or decoding)
        runner = "pools" if v2_scores(root) else "does not pool tokens"
        print(
            f"{folder}: {'; '.join(problems) or 'all there'}; the V2 runner {runner}; decode steps: "
            f"{'; '.join(decoding) or 'all there'}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
