"""Runs of requests, judged by a stand-in for lm-evaluation-harness: no test of these needs that."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from scoremode.engines.torch.options import TorchOptions
from scoremode.harness.metrics import HarnessResults, tasks_section
from scoremode.results.folders.tables import answers_of
from scoremode.results.scores import Scores
from scoremode.runs.measure import measure
from scoremode.runs.request import Request, Result
from scoremode.text.task_requests import (
    TASKS,
    PlannedCorpus,
    RequestCorpus,
    TextRequest,
    request_corpus,
)

__all__ = ["QUESTIONS", "MadeJudge", "made_requests", "measured_requests", "rounded"]

QUESTIONS = 10
_ENDS = (" It was a good day.", " They went home.", " Nobody knew why.")


def made_requests(count: int = QUESTIONS) -> list[TextRequest]:
    """Questions with three answers each in two tasks, of the same contexts in both, and two pages."""
    found = []
    for task in ("ends", "more"):
        for question in range(count):
            context = f"There were {question + 2} children in the {task} garden."
            found += [TextRequest(task, question, i, context, e) for i, e in enumerate(_ENDS)]
    pages = ("A page. " * 5, "The sun was warm, and the children played. " * 40)
    found += [TextRequest("pages", i, 0, None, page) for i, page in enumerate(pages)]
    return found


@dataclass(frozen=True)
class MadeJudge:
    """Takes the first answer for the right one, and gives results in the harness's form."""

    def identity(self) -> dict[str, Any]:
        return self._about()

    def section(
        self, folder: Path, corpus: RequestCorpus, planned: PlannedCorpus, scores: Scores
    ) -> dict[str, Any]:
        found = answers_of(scores, planned.window, planned.begin)
        own = HarnessResults(self._results(corpus, found.logprob.tolist()))
        base = None
        if found.base_logprob is not None:
            base = HarnessResults(self._results(corpus, found.base_logprob.tolist()))
        of = {"path": "json", "name": None, "fingerprints": {"test": "abc"}}
        datasets = dict.fromkeys(("ends", "more", "pages"), of)
        return tasks_section(folder, corpus, planned, scores, own, base, datasets, self._about())

    def _about(self) -> dict[str, Any]:
        return {"lm_eval": "0.4.13", "tasks": ["both", "pages"], "num_fewshot": None, "limit": None,
                "chat": False, "multiturn": True, "system": None}  # fmt: skip

    def _results(self, corpus: RequestCorpus, logprobs: list[float]) -> dict[str, Any]:
        samples: dict[str, list[dict[str, Any]]] = {}
        by_question: dict[tuple[str, int], list[float]] = {}
        for request, logprob in zip(corpus.requests, logprobs, strict=True):
            by_question.setdefault((request.task, request.question), []).append(logprob)
        for (task, question), answers in by_question.items():
            made = {"doc_id": question, "filter": "none", "resps": [[(a, False)] for a in answers]}
            if task == "pages":
                made |= {"metrics": ["word_perplexity"], "word_perplexity": (answers[0], 10)}
            else:
                made |= {"metrics": ["acc"], "acc": float(answers[0] == max(answers))}
            samples.setdefault(task, []).append(made)
        means = {
            task: sum(s["acc"] for s in samples[task]) / len(samples[task])
            for task in ("ends", "more")
        }
        results = {
            task: {"alias": task, "acc,none": value, "acc_stderr,none": 0.1}
            for task, value in means.items()
        }
        results["pages"] = {"word_perplexity,none": 9.0, "word_perplexity_stderr,none": "N/A"}
        both = {"alias": "both", "acc,none": sum(means.values()) / 2, "acc_stderr,none": 0.1}
        return {
            "results": results,
            "groups": {"both": both},
            "group_subtasks": {"both": ["ends", "more"], "pages": []},
            "versions": {"ends": 1.0, "more": 1.0, "pages": 2},
            "n-shot": {"ends": 0, "more": 2, "pages": 0},
            "samples": samples,
        }


def measured_requests(model: Path, output: Path, reference: Path | None = None) -> Result:
    """A run of them, judged."""
    return measure(
        Request(
            model=str(model),
            corpus=request_corpus(made_requests()),
            protocol=TASKS,
            options=TorchOptions(device="cpu", dtype="float32"),
            output=output,
            reference=None if reference is None else str(reference),
            judge=MadeJudge(),
        )
    )


def rounded(model: Path, folder: Path) -> Path:
    """A copy of a model whose layers' weights have seven values a row."""
    shutil.copytree(model, folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and "layers" in name:
                scale = tensor.abs().amax(1, keepdim=True) / 3
                tensors[name] = (tensor / scale).round() * scale
        save_file(tensors, file, metadata={"format": "pt"})
    return folder
