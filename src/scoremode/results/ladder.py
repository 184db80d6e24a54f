"""A ladder read back: its manifest, `ladder.json`, and what its runs say, made of them again.

A ladder leads from a base in float32, the top, to what is served, a step at a time. Each step is one
model computed one way; its run, in the folder of its name, compares it with the top, and another one,
in `after/`, with the step before.

**Shares.** A KLD is no distance, so those from step to step don't add up to the whole. What does is by
how much each step raises the KLD against the top: the differences of neighbors are the last step's KLD
in parts, and a part's share of it is a ratio of two means of the same blocks of text.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError
from scoremode.results.comparison.comparable import require_same
from scoremode.results.folders.finished import FinishedRun, open_whole
from scoremode.results.folders.store import manifest_in, seal_of
from scoremode.results.metrics import METRIC, log_ratio
from scoremode.results.record.section import Metric, differences, misfit
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics.agreement import MIN_TARGETS, difference, judge, logits_of
from scoremode.results.statistics.alarms import LIMITS, Noise, judge_step
from scoremode.results.statistics.means import Blocks, Mean, estimates

SCHEMA, SCHEMA_VERSION = "scoremode.ladder", 1
MANIFEST = "ladder.json"
# The base in float32, and the last step of the torch engine once more, computed otherwise.
TOP, NOISE, FILE_NOISE = "base-float32", "noise", "file-noise"
# The metrics of a step, against the top and against the step before.
SHOWN = ("kld", "tv", "top1", "ppl_ratio")

Kind = Literal["rounding", "lossy"]
Status = Literal["waiting", "running", "done", "failed", "left out"]
# Every step behind the top, in its order: `rounding` where the same model is computed by other kernels,
# `lossy` where what is computed is something else, so that a loss is nothing wrong.
KINDS: dict[str, Kind] = {
    "base": "rounding",
    "weights": "lossy",
    "inputs": "lossy",
    "kv-cache": "lossy",
    "vllm-prefill": "rounding",
    "vllm-decode": "rounding",
    "llama.cpp": "lossy",
    "llama-perplexity": "rounding",
}


class Step(TypedDict):
    """A step of a ladder.

    - `status`: `waiting`, `running`, `done`; `failed`, which the next call tries again, or `left out`,
      each with the `reason`, which is else None.
    - `command`: the words of the command line that makes its run, and `python` the interpreter where
      that is another one.
    - `folder`: its run against the top, relative to the manifest's folder; None before it is done.
    - `before`: the step that it was compared with, None of the top; `after`: the folder of that run;
      None where the step before is the top, which its own run has.
    - `scores`, `after_scores`: sha256 of both runs' scores, None before they are done.
    """

    name: str
    status: Status
    reason: str | None
    command: list[str]
    python: str | None
    folder: str | None
    before: str | None
    after: str | None
    scores: str | None
    after_scores: str | None


class Ladder(TypedDict):
    """A ladder, as its last call wanted it.

    - `created`: when the first call began; `updated`: when this was written; both ISO 8601, UTC.
    - `command`: the last call's; `asked`: what two calls must share to be of one ladder.
    - `steps`: the top first. `noise`: what steps are judged by, each one's `before` the step that it
      was compared with: `noise`, the last step of the torch engine computed otherwise, and
      `file-noise`, its predictions as llama.cpp's file holds them.
    - `suspects`: what of the model's files may be wrong beside the base's (`kind`, `name`, `words`),
      None where nobody has looked.
    - `findings`: what `findings` makes of the runs; there when all steps are done that can be.
    - `sha256`: of all the rest.
    """

    schema: str
    schema_version: int
    created: str
    updated: str
    command: list[str]
    model: str
    base: str
    asked: dict[str, Any]
    steps: list[Step]
    noise: list[Step]
    suspects: list[dict[str, str]] | None
    findings: NotRequired[dict[str, Any]]
    sha256: str


def is_ladder(folder: Path) -> bool:
    """Tells whether a folder is a ladder's."""
    return os.path.isfile(folder / MANIFEST)  # noqa: PTH113  Path.is_file raises for a name too long


def read_ladder(folder: Path) -> Ladder | None:
    """The manifest of the ladder in `folder`, None where there is none.

    Raises RunFolderError for what is no manifest, or not as it was written.
    """
    file = folder / MANIFEST
    if (found := manifest_in(file, "ladder", SCHEMA, SCHEMA_VERSION)) is None:
        return None
    if (wrong := misfit(found, Ladder)) or seal_of(found) != found["sha256"]:
        why = f" ({wrong})" if wrong else ""
        raise RunFolderError(
            f"{file}: was changed after it was written{why}: remove the ladder's folder, and measure "
            "again"
        )
    ladder = cast(Ladder, found)
    for step in (*ladder["steps"], *ladder["noise"]):
        is_known = step["name"] in (TOP, NOISE, FILE_NOISE, *KINDS)
        if not (is_known and _is_inside(step["folder"]) and _is_inside(step["after"])):
            raise RunFolderError(f"{file}: has a step {step['name']!r}, which no ladder has")
    return ladder


def _is_inside(place: str | None) -> bool:
    """Tells whether a run's place is one in the ladder's own folder."""
    if place is None:
        return True
    return not Path(place).is_absolute() and ".." not in Path(place).parts


def finished_ladder(folder: Path) -> Ladder:
    """The ladder in `folder` with its findings, made again from its runs' scores.

    Raises RunFolderError for one that isn't done, and where the manifest says something else.
    """
    ladder = read_ladder(folder)
    if ladder is None:
        raise RunFolderError(f"{folder}: is no ladder's folder")
    if (stored := ladder.get("findings")) is None:
        raise RunFolderError(
            f"{folder}: is a ladder that isn't done: run its command again to go on"
        )
    made = findings(folder, ladder)
    for found in differences("findings", stored, made, {"ci95", "note"}, of="its runs"):
        raise RunFolderError(f"{folder / MANIFEST}: {found.words}")
    return {**ladder, "findings": made}


def step_folders(folder: Path, ladder: Ladder) -> list[Path]:
    """The runs of all steps behind the top that are done, each against the top."""
    return [folder / str(s["folder"]) for s in ladder["steps"][1:] if s["status"] == "done"]


@dataclass(frozen=True, eq=False)
class _Rung:
    """A step that is done: its run against the top, and the one against the step before."""

    step: Step
    run: FinishedRun
    scores: Scores
    extras: Mapping[str, NDArray]
    after: Scores

    @property
    def top(self) -> Comparison:
        assert self.scores.against is not None
        return self.scores.against

    @property
    def before(self) -> Comparison:
        assert self.after.against is not None
        return self.after.against


def findings(folder: Path, ladder: Ladder) -> dict[str, Any]:
    """What a ladder's runs say; plain JSON.

    - `verdict`: a sentence; `steps`: those that are done behind the top, a line each; `noise`: of the
      computation that they are judged by, None without one.
    - `intervals`: the blocks that all intervals are from.

    Raises RunFolderError where a run is not the one that the ladder made.
    """
    rungs = [_rung(folder, s) for s in ladder["steps"][1:] if s["status"] == "done"]
    if not rungs:
        raise RunFolderError(f"{folder}: no step of this ladder behind the top is done")
    first = ladder["steps"][0]
    top = _opened(folder, first["folder"], first["scores"], is_top=True)[:2]
    models = [top[0], *(rung.run for rung in rungs)]
    for number, other in enumerate(models[1:], 1):
        require_same(top[0], other)
        for earlier in models[:number]:
            _check_same_files(earlier, other)
    noise: dict[str, tuple[FinishedRun, Scores]] = {}
    for step in ladder["noise"]:
        if step["status"] == "done":
            noise[step["name"]] = _opened(folder, step["after"], step["after_scores"])[:2]
            require_same(top[0], noise[step["name"]][0])
    first = rungs[0].run
    columns = {f"kld {r.step['name']}": r.top.kld for r in rungs}
    columns |= {f"kld after {r.step['name']}": r.before.kld for r in rungs}
    columns |= {f"nll {r.step['name']}": log_ratio(r.after, r.before) for r in rungs}
    chosen = first.places.chosen(columns, first.record.protocol.context_length, first.weights)
    blocks = first.places.blocks(chosen.tokens, first.weights)
    metrics = estimates(_means(rungs, noise, blocks), blocks.length)
    lines: list[dict[str, Any]] = []
    before, name = top, TOP
    for rung in rungs:
        own = rung.step["name"]
        other = _other_arithmetic(before[0], rung, name)
        noises = {key: scores for key, (_, scores) in noise.items()}
        judged = _judged(before, rung, noises, name, other)
        if own == "weights" and ladder["suspects"] is not None:
            judged = _suspected(ladder["suspects"])
        line = _line(rung, name, metrics)
        if other is not None:
            line["kind"] = "lossy"
        lines.append({**line, "judged": judged})
        before, name = (rung.run, rung.scores), own
    found = {
        "steps": lines,
        "noise": [
            _noise_line(step, noise[step["name"]][0], metrics)
            for step in ladder["noise"]
            if step["name"] in noise
        ],
        "intervals": chosen.to_json(blocks.filled),
        "plan": first.record.document["plan"],
        "protocol": first.record.document["protocol"],
        "corpus": first.record.document["corpus"],
    }
    failed = [step["name"] for step in ladder["steps"] if step["status"] == "failed"]
    return {"verdict": verdict_of(found, failed), **found}


def _rung(folder: Path, step: Step) -> _Rung:
    run, scores, extras = _opened(folder, step["folder"], step["scores"])
    after = scores
    if step["after"] is not None:
        other, after, _ = _opened(folder, step["after"], step["after_scores"])
        require_same(run, other)
    return _Rung(step, run, scores, extras, after)


def _opened(
    folder: Path, place: str | None, sha256: str | None, *, is_top: bool = False
) -> tuple[FinishedRun, Scores, Mapping[str, NDArray]]:
    """A run of the ladder, if its scores have this sha256, and are against a base but for the top's."""
    name = str(place)
    run, scores, extras = open_whole(folder / name)
    if run.record.scores.sha256 != sha256:
        raise RunFolderError(
            f"{folder / name}: is another run than the ladder made: its scores have the sha256 "
            f"{run.record.scores.sha256[:12]}…, and {MANIFEST} has {str(sha256)[:12]}…"
        )
    if (scores.against is None) != is_top:
        raise RunFolderError(f"{folder / name}: has no base, or is the top and has one")
    return run, scores, extras


def _check_same_files(one: FinishedRun, other: FinishedRun) -> None:
    """Raises RunFolderError where two steps are of one model, and its files changed in between."""
    first, second = one.record.checkpoint, other.record.checkpoint
    if first.path == second.path and first.files != second.files:
        raise RunFolderError(
            f"{other.folder}: {second.path} has changed since {one.folder} was measured"
        )


def _means(
    rungs: Sequence[_Rung],
    noise: Mapping[str, tuple[FinishedRun, Scores]],
    blocks: Blocks,
) -> dict[tuple[str, str, str], Mean]:
    """Step, `top` or `before` or `added`, and metric → mean."""
    found: dict[tuple[str, str, str], Mean] = {}

    def add(key: tuple[str, str, str], mean: Mean | None) -> None:
        if mean is not None:
            found[key] = mean

    sides = [
        (r.step["name"], of, s) for r in rungs for of, s in (("top", r.scores), ("before", r.after))
    ]
    sides += [(name, "before", scores) for name, (_, scores) in noise.items()]
    for name, of, scores in sides:
        assert scores.against is not None
        for key in SHOWN:
            spec = METRIC[key]
            assert spec.column is not None
            column = spec.column(scores, scores.against)
            assert column is not None
            mean = blocks.mean(column)
            add(
                (name, of, key),
                mean if mean is None or spec.then is None else mean.through(spec.then),
            )
    last = rungs[-1].top.kld
    earlier = np.zeros_like(last)
    for rung in rungs:
        added = rung.top.kld - earlier
        add((rung.step["name"], "added", "kld"), blocks.mean(added))
        add((rung.step["name"], "added", "share"), blocks.mean(added, per=last))
        earlier = rung.top.kld
    return found


def _line(
    rung: _Rung, before: str, metrics: Mapping[tuple[str, str, str], Metric]
) -> dict[str, Any]:
    """A step's line, but for how it is judged."""
    name, record = rung.step["name"], rung.run.record
    said = {
        of: {key: metrics[name, of, key].to_json() for key in SHOWN} for of in ("top", "before")
    }
    added = {
        key: m.to_json() for key in ("kld", "share") if (m := metrics.get((name, "added", key)))
    }
    engine = record.document["engine"]
    return {
        "step": name,
        "kind": KINDS[name],
        "before": before,
        "model": record.checkpoint.source,
        "engine": {k: engine.get(k) for k in _ENGINE},
        "against_before": said["before"],
        "against_top": said["top"],
        "added": {"share": None, **added},
    }


def _noise_line(
    step: Step, run: FinishedRun, metrics: Mapping[tuple[str, str, str], Metric]
) -> dict[str, Any]:
    engine = run.record.document["engine"]
    name = step["name"]
    return {
        "name": name,
        "before": step["before"],
        "engine": {k: engine.get(k) for k in ("dtype", "attention")},
        "against_before": {key: metrics[name, "before", key].to_json() for key in SHOWN},
    }


def _judged(
    before: tuple[FinishedRun, Scores],
    rung: _Rung,
    noise: Mapping[str, Scores],
    name: str,
    other: str | None,
) -> dict[str, Any] | None:
    """Whether a step is more than rounding makes of the one before, `name`: `alarm`, and why in
    `words`; None of a step whose loss is nothing wrong, and of fewer targets than MIN_TARGETS.

    The base's own dtype is what the noise is made of, though another model's: it is held against what
    that dtype may do to any, as all steps are where there is no noise. A step of `other` arithmetic is
    held against what still looks like the same model.
    """
    if KINDS[rung.step["name"]] == "lossy" or len(rung.scores) < MIN_TARGETS:
        return None
    engines = before[0].record.document["engine"], rung.run.record.document["engine"]
    order = ("float32", "float16", "bfloat16").index
    # llama.cpp's file says none: it computes in float32 where it doesn't quantize.
    computed = [e["dtype"] if e["dtype"] in LIMITS else "float32" for e in engines]
    dtype = max(computed, key=order)
    logits = max(map(logits_of, engines), key=order)
    parts = [NOISE, *([FILE_NOISE] if rung.step["name"] == "llama-perplexity" else [])]
    if other is None and rung.step["name"] != "base" and noise.keys() >= set(parts):
        # The noise's are the torch engine's own, which rounds none.
        made = Noise.of(*(noise[part] for part in parts))
        return judge_step(rung.after, made, dtype=dtype, logits=logits).to_json()
    context = rung.run.record.protocol.context_length
    found = difference(rung.scores, before[1], context, rung.run.weights, rung.run.places)
    ran = [(engine.get("activations") or {}).get("ran") for engine in engines]
    verdict = judge(
        found,
        compute=dtype,
        logits=logits,
        activations=ran[1],
        reference=ran[0],
        named=name,
        other=other,
    )
    return {"alarm": not verdict.agrees, "words": verdict.words}


def _other_arithmetic(before: FinishedRun, rung: _Rung, name: str) -> str | None:
    """What a step computes otherwise than the one before, `name`, by design, in words: since a step
    between them was skipped or failed, or since its engine doesn't quantize what the model declares.
    None where nothing is known to differ, and of a step that is there to differ."""
    own = rung.step["name"]
    if own == "base" or KINDS[own] == "lossy":
        return None
    if name in (TOP, "base"):
        return f"the model's weights, and {name} has the base's"
    if own == "llama-perplexity":
        return (
            None if name == "llama.cpp" else f"llama.cpp's arithmetic, which {name} does not have"
        )
    theirs, ours = (run.record.document["engine"] for run in (before, rung.run))
    found: list[str] = []
    inputs = [(engine.get("activations") or {}).get("ran") for engine in (ours, theirs)]
    if inputs[0] != inputs[1] and not {None, "not known"} & set(inputs):
        found.append(f"inputs {inputs[0]}, and those of {name} {inputs[1]}")
    caches = [_cache(engine) for engine in (ours, theirs)]
    if (caches[0] is None) != (caches[1] is None):
        ours_is, theirs_is = (cache or "not quantized" for cache in caches)
        found.append(f"KV cache {ours_is}, and that of {name} {theirs_is}")
    return "; ".join(found) or None


def _cache(engine: Mapping[str, Any]) -> str | None:
    """What an engine's KV cache is quantized to, None where it isn't."""
    name = engine.get("kv_cache_dtype")
    return None if name in (None, "", "auto", engine["dtype"]) else name


def _suspected(suspects: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The judgment of the quantized weights, by what of the files may be wrong."""
    said = [
        s["words"] if s["kind"] in ("config", "tokenizer") else f"{s['name']}: {s['words']}"
        for s in suspects
    ]
    more = [f"and {len(said) - _SUSPECTS} more"] if len(said) > _SUSPECTS else []
    words = "; ".join(said[:_SUSPECTS] + more)
    return {"alarm": bool(suspects), "words": words or "no linear is out of line with its peers"}


def alarms_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The steps with an alarm, and its words."""
    judged = ((step["step"], step["judged"]) for step in found["steps"])
    return [(name, said["words"]) for name, said in judged if said and said["alarm"]]


def verdict_of(found: Mapping[str, Any], failed: Sequence[str]) -> str:
    """A sentence on where the loss comes from, the alarms first; `failed`: steps that are missing."""
    steps = found["steps"]
    last = steps[-1]
    alarms = [f"incomplete, since {_listed(failed)} failed"] if failed else []
    alarms += [f"alarm at {name}: {words}" for name, words in alarms_of(found)]
    return "; ".join([*alarms, _where(steps, last, found["noise"])])


def _where(
    steps: Sequence[Mapping[str, Any]],
    last: Mapping[str, Any],
    noise: Sequence[Mapping[str, Any]],
) -> str:
    total = last["against_top"]["kld"]
    whole = f"the KLD of {total['value']:.4g} nats"
    quiet = [
        s["step"]
        for s in steps
        if s["kind"] == "rounding" and s["judged"] and not s["judged"]["alarm"]
    ]
    if total["value"] <= 0:
        how = "exactly" if total["value"] == 0 else "to within rounding"
        return f"{last['step']} predicts {how} what the base in float32 does"
    if noise and total["value"] <= noise[0]["against_before"]["kld"]["value"]:
        return f"{whole} is no more than rounding makes of this model"
    parts = sorted((s for s in steps if _is_there(s)), key=lambda s: -s["added"]["share"]["value"])
    if not parts:
        return f"{whole} comes from no step that this text tells from chance"
    named, sum_ = [], 0.0
    for part in parts:
        if sum_ >= _MOST:
            break
        named.append(part)
        sum_ += part["added"]["share"]["value"]
    said = f"{_share(named[0], whole)} comes from {named[0]['step']}"
    said += "".join(f", {_share(part)} from {part['step']}" for part in named[1:])
    leading = {part["step"] for part in named}
    if rest := [name for name in quiet if name not in leading]:
        add = "adds" if len(rest) == 1 else "add"
        said += f"; {_listed(rest)} {add} nothing that rounding does not explain"
    return said


# Of a step's engine, what its line says.
_ENGINE = ("engine", "phase", "dtype", "arithmetic", "kv_cache_dtype")
# Suspects that a line names.
_SUSPECTS = 3
# Steps are named until they make so much of the whole.
_MOST = 0.9


def _is_there(step: Mapping[str, Any]) -> bool:
    """Tells whether a step raises the KLD against the top, beyond chance where there is an interval."""
    added, share = step["added"]["kld"], step["added"]["share"]
    low = added["value"] if added["ci95"] is None else added["ci95"][0]
    return share is not None and low > 0


def _share(step: Mapping[str, Any], of: str = "") -> str:
    share = step["added"]["share"]
    said = f"{100 * share['value']:.3g} %"
    if share["ci95"] is not None:
        said += f" [{100 * share['ci95'][0]:.3g}, {100 * share['ci95'][1]:.3g}]"
    return f"{said} of {of}" if of else said


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
