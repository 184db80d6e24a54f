"""Engines in a process of their own: `python run_engine.py JOB.json OUT`.

vLLM's engine runs in the process that asks, binds its threads and changes torch for good; so what a
test compares is started here, not in pytest's process. A job is a list of starts, one after the other;
each names an engine, a model, keywords and calls. What came out goes to OUT.npz
(`start/call/column`, rows of all prompts in order) and OUT.json.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from measured import run_measured

COLUMNS = ("position", "target", "logprob", "entropy", "top1", "top1_logprob")
# What vLLM's scheduler does meanwhile: tokens of each prompt in each step, preemptions, and whether it
# keeps prefixes.
watch: dict[str, Any] = {}


def main(job_file: str, out: str) -> None:
    engines = {
        "scoremode": run_scoremode,
        "stock": run_stock,
        "decoding": run_decoding,
        "torch": run_torch,
        "measured": run_measured,
    }
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {}
    for name, start in json.loads(Path(job_file).read_text()).items():
        facts[name] = {"errors": {}, "notes": [], "steps": {}}
        with changed_environment(start["environment"]), tampered(start["tamper"]):
            columns = engines[start["engine"]](start, facts[name])
        arrays |= {f"{name}/{key}": values for key, values in columns.items()}
    np.savez(f"{out}.npz", **arrays)
    Path(f"{out}.json").write_text(json.dumps(facts))


def run_scoremode(start: dict[str, Any], facts: dict[str, Any]) -> dict[str, np.ndarray]:
    from scoremode.engines.vllm import ScoringLLM
    from scoremode.errors import ScoremodeError

    before = registry()
    try:
        llm = ScoringLLM(start["model"], notify=facts["notes"].append, **start["arguments"])
    except ScoremodeError as error:
        facts["errors"]["start"] = str(error)
        return {}
    facts["restored"] = registry() == before and "SCOREMODE_VLLM" not in os.environ
    columns: dict[str, np.ndarray] = {}
    with llm, watched_scheduler():
        facts |= {"describe": llm.describe(), "peak_bytes": llm.peak_bytes()}
        for name, call in start["calls"].items():
            try:
                answers = llm.score(**opened(call))
            except ScoremodeError as error:
                facts["errors"][name] = str(error)
                continue
            facts["steps"][name] = take_watch()
            for column in COLUMNS:
                parts = [getattr(a, column) for a in answers]
                columns[f"{name}/{column}"] = np.concatenate(parts) if parts else np.empty(0)
            compared = [a.against.columns() for a in answers if a.against is not None]
            for column in compared[0] if compared else ():
                columns[f"{name}/{column}"] = np.concatenate([c[column] for c in compared])
            columns[f"{name}/lengths"] = np.array([len(a) for a in answers], np.int64)
        facts["prefilled"] = llm.prefilled
    return columns


def opened(call: dict[str, Any]) -> dict[str, Any]:
    """`call` with the reference that it names by its path."""
    if "against" not in call:
        return call
    from scoremode.engines.vllm.prompts import Against
    from scoremode.llama_cpp.reference import LlamaCppReference
    from scoremode.reference.stored import StoredReference

    against = dict(call["against"])
    path = Path(against.pop("reference"))
    opened = LlamaCppReference if path.is_file() else StoredReference
    return call | {"against": Against(opened(path), **against)}


def run_stock(start: dict[str, Any], facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """vLLM as anybody uses it, with the plugin installed and not asked for."""
    from vllm import LLM, SamplingParams

    llm = LLM(start["model"], **start["arguments"])
    facts["runner"] = llm.model_config.runner_type
    facts["registry"] = registry()
    columns: dict[str, np.ndarray] = {}
    with watched_scheduler():
        for name, call in start["calls"].items():
            params = SamplingParams(
                max_tokens=1,
                prompt_logprobs=-1 if name in start["all_logits"] else 0,
                flat_logprobs=True,
                detokenize=False,
            )
            prompts = [{"prompt_token_ids": ids} for ids in call["prompts"]]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            facts["steps"][name] = take_watch()
            rows = [row for o in outputs for row in rows_of(o.prompt_logprobs, o.prompt_token_ids)]
            columns[f"{name}/logprob"] = np.array([own for own, _ in rows], np.float32)
            if name in start["all_logits"]:
                full = np.full((len(rows), max(len(e) for _, e in rows)), np.nan, np.float32)
                for i, (_, entries) in enumerate(rows):
                    full[i, list(entries)] = list(entries.values())
                columns[f"{name}/full"] = full
    llm.llm_engine.engine_core.shutdown()
    return columns


def run_decoding(start: dict[str, Any], facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """vLLM as anybody uses it, generating each prompt after its first token: a logits processor by its
    own interface leaves no choice, and its own raw log-probabilities are those before it."""
    from forcing import Forced
    from vllm import LLM, SamplingParams

    llm = LLM(start["model"], **start["arguments"], logits_processors=[Forced])
    columns: dict[str, np.ndarray] = {}
    with watched_scheduler():
        for name, call in start["calls"].items():
            begin = time.perf_counter()
            outputs = llm.generate(
                [{"prompt_token_ids": ids[:1]} for ids in call["prompts"]],
                [
                    SamplingParams(
                        max_tokens=len(ids) - 1,
                        temperature=0.0,
                        logprobs=0,
                        flat_logprobs=True,
                        detokenize=False,
                        ignore_eos=True,
                        extra_args={"forced": ids[1:]},
                    )
                    for ids in call["prompts"]
                ],
                use_tqdm=False,
            )
            facts["seconds"] = time.perf_counter() - begin
            facts["steps"][name] = take_watch()
            rows = []
            for ids, output in zip(call["prompts"], outputs, strict=True):
                (one,) = output.outputs
                assert list(one.token_ids) == ids[1:]
                flat = one.logprobs
                for at, target in zip(flat.start_indices, ids[1:], strict=True):
                    assert flat.token_ids[at] == target
                    rows.append(flat.logprobs[at])
            columns[f"{name}/logprob"] = np.array(rows, np.float32)
    llm.llm_engine.engine_core.shutdown()
    return columns


def rows_of(flat: Any, ids: list[int]) -> Iterator[tuple[float, dict[int, float]]]:
    """Of each prompt token but the first: its log-probability, and all that came with it."""
    for position in range(1, len(ids)):
        at = slice(flat.start_indices[position], flat.end_indices[position])
        entries = dict(zip(flat.token_ids[at], flat.logprobs[at], strict=True))
        yield entries[ids[position]], entries


def run_torch(start: dict[str, Any], facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """scoremode's own engine, each prompt a window."""
    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.text.plan import make_plan
    from scoremode.text.protocol import Protocol

    engine = build_engine(open_checkpoint(start["model"]), TorchOptions(**start["arguments"]))
    columns = {}
    for name, call in start["calls"].items():
        prompts = np.array(call["prompts"], np.int32)
        protocol = Protocol("test", context_length=prompts.shape[1])
        plan = make_plan(prompts.ravel(), protocol.resolve(None))
        scores = list(engine.score(plan, engine.schedule(plan)))
        columns[f"{name}/logprob"] = np.concatenate([s.logprob for s in scores])
    facts["describe"] = engine.describe()
    return columns


def registry() -> dict[str, str]:
    """Of each architecture that vLLM knows: what its registry holds."""
    from vllm import ModelRegistry

    return {name: repr(model) for name, model in ModelRegistry.models.items()}


@contextlib.contextmanager
def changed_environment(values: dict[str, str]) -> Iterator[None]:
    # What this process was not started with, and those that it starts are.
    sys.path[:0] = filter(None, [values.get("PYTHONPATH")])
    with patch.dict(os.environ, values):
        yield


@contextlib.contextmanager
def tampered(what: str | None) -> Iterator[None]:
    """Something is broken inside, as a release of vLLM might break it."""
    from scoremode.engines.vllm import signatures

    if what is None:
        yield
        return
    if what == "signatures":
        more = {"pooling_params.py": {"PoolingParams": "nonesuch"}}
        with patch.object(signatures, "REQUIREMENTS", signatures.REQUIREMENTS | more):
            yield
        return
    if what == "decoding signatures":
        with patch.dict(signatures.DECODING, {"sampling_params.py": {"SamplingParams": "none"}}):
            yield
        return
    from scoremode.engines.vllm.workers.steps import StepScorer

    if what == "rows of others":
        rows = StepScorer._requests_of_rows
        rolled = lambda self: [*rows(self)[1:], *rows(self)[:1]]  # noqa: E731
        with patch.object(StepScorer, "_requests_of_rows", rolled):
            yield
        return
    if what == "other places":
        logits = StepScorer._logits

        def late(self: Any, hidden: Any) -> Any:
            self._step = {n: (max(0, b - 1), max(1, e - 1)) for n, (b, e) in self._step.items()}
            return logits(self, hidden)

        with patch.object(StepScorer, "_logits", late):
            yield
        return
    from scoremode.engines.vllm.workers.vocab_slice import ShardedHead

    score = ShardedHead.score

    def changed(self: Any, hidden: Any, target: Any, *more: Any) -> Any:
        return score(self, hidden, target.roll(1), *more)

    with patch.object(ShardedHead, "score", changed):
        yield


@contextlib.contextmanager
def watched_scheduler() -> Iterator[None]:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule, preempt = Scheduler.schedule, Scheduler._preempt_request

    def watched_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = schedule(self, *args, **kwargs)
        if output.total_num_scheduled_tokens:
            watch["steps"].append(dict(output.num_scheduled_tokens))
            watch["keeps prefixes"] = self.kv_cache_manager.enable_caching
        return output

    def watched_preempt(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch["preempted"] += 1
        return preempt(self, *args, **kwargs)

    take_watch()
    with (
        patch.object(Scheduler, "schedule", watched_schedule),
        patch.object(Scheduler, "_preempt_request", watched_preempt),
    ):
        yield


def take_watch() -> dict[str, Any]:
    """What was seen since the last time."""
    seen = dict(watch)
    watch.update(steps=[], preempted=0)
    return seen


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
