"""The document of a finished run: a perplexity, a comparison, tasks, a reference or a shard."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from scoremode.errors import escaped
from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Prose,
    Table,
    Verdict,
    counted,
    data,
    interval,
    interval_text,
    measured,
    metric_of,
    metric_words,
    number,
    printable,
    rate,
    words,
)
from scoremode.report.facts import (
    base_words,
    caveats,
    headline_rows,
    measured_rows,
    page_rows,
    place_rows,
    protocol_words,
    ran_rows,
    text_name,
    text_words,
)
from scoremode.report.groups import KINDS, group_parts, groups_of
from scoremode.report.runs import run_data
from scoremode.results.gates import bare, by_chance
from scoremode.results.labels import base_of, label_of
from scoremode.results.metrics import shown
from scoremode.results.record.definition import Done, Record, ShardDone
from scoremode.results.record.model import Reference
from scoremode.results.record.outcome import (
    Gate,
    NoiseFloor,
    SurvivalCurve,
    WorstTarget,
)
from scoremode.results.record.section import Metric
from scoremode.results.record.text import Task, TaskGroup, Tasks
from scoremode.results.statistics.bootstrap import verdict
from scoremode.results.statistics.verdict import record_verdicts

Rows = list[tuple[str, str]]
# Characters of the text before a token, and of a token.
_BEFORE, _TOKEN = 44, 20
_VERDICTS = {
    "better": "measurably below the base on this text",
    "worse": "measurably above the base on this text",
    "not distinguishable": "not distinguishable from the base on this text",
}

# Numbers that the table of runs has.
_TABLED = ("KLD", "KLD p99", "same top-1", "PPL", "base PPL", "PPL / base", "model")
# Tasks and metrics that a line names.
_SAID = 3
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_TASK_COLUMNS = (
    words("task", "task"),
    number("questions", "questions", ",d", 3),
    words("metric", "metric", 9),
    number("value", "value", ".4f", 9),
    number("±", "stderr", ".4f"),
)
_PAIRED_COLUMNS = (
    number("base", "base", ".4f", 6),
    number("change", "change", "+.4f", 8),
    Column(
        "95 %",
        "change_ci95",
        lambda ends: f"[{ends[0]:+.4f}, {ends[1]:+.4f}]",
        lambda ends: tuple(ends),
        ("_low", "_high"),
    ),
    number("lost", "lost", ",d", 4),
    number("gained", "gained", ",d", 4),
    number("p", "mcnemar_p", ".2g"),
    number("KLD", "kld", ".3g", 6),
)


def finished_document(
    record: Record,
    folder: Path,
    *,
    verbose: bool = False,
    worst: bool = False,
    margin: float | None = None,
) -> Document:
    """The table of the run or shard in `folder`; with `worst` its worst targets also without `verbose`;
    `margin`: of the verdict, None for each metric's own."""
    if isinstance(record, ShardDone):
        return shard_document(record, folder, verbose=verbose)
    assert isinstance(record, Done)
    if record.tasks:
        return tasks_document(record, record.tasks, folder, verbose=verbose, margin=margin)
    if "kld" in record.metrics:
        found = kld_document(record, folder, verbose=verbose, margin=margin)
        if worst and not verbose:
            return replace(found, parts=(*found.parts, worst_facts(record.worst or ())))
        return found
    if "kld_least" in record.metrics:
        return bounds_document(record, folder, verbose=verbose, margin=margin)
    if record.kept:
        return reference_document(record, folder, verbose=verbose)
    return run_document(record, folder, verbose=verbose)


def shard_document(record: ShardDone, folder: Path, *, verbose: bool = False) -> Document:
    """The shard in `folder`; `verbose`: with where it ran, and how long."""
    shard, label, base = record.shard, label_of(record), record.reference
    (first, behind), (begin, end) = shard.passes, shard.windows
    number, of = shard.number, shard.of
    whole = "it is all of the run" if of == 1 else "a part of the text"
    rows = [
        ("shard", f"{number} of {of}, done"),
        ("no metrics", f"{whole}: scoremode merge makes the run of {counted(of, 'shard')}"),
        ("model", label),
        *([("base", base_words(base))] if base else []),
        ("passes", f"{first + 1} to {behind} of {shard.of_passes:,}"),
        ("windows", f"{begin + 1:,} to {end:,} of {record.plan.windows:,}"),
        ("targets", f"{shard.targets:,} of {record.plan.scored:,}"),
        ("text", text_words(record.corpus)),
        ("protocol", protocol_words(record.protocol)),
        *caveats(record),
        *(ran_rows(record) if verbose else ()),
        ("record", str(folder / "record.json")),
    ]
    plain = {
        "folder": str(folder),
        "label": label,
        "model": record.checkpoint.source,
        "reference": base.source if base else None,
        "shard": number,
        "of": of,
        "first_pass": first,
        "passes": behind - first,
        "of_passes": shard.of_passes,
        "first_window": begin,
        "windows": end - begin,
        "targets": shard.targets,
    }
    table = Table(tuple(map(data, plain)), (tuple(plain.values()),))
    return Document((Facts(tuple(rows), frozenset(("shard", "model"))),), table)


def run_document(record: Done, folder: Path, *, verbose: bool = False) -> Document:
    """The result of one run; `verbose`: with all that made it, behind."""
    ppl = record.metrics["ppl"]
    first = [
        *page_rows(record),
        ("PPL", f"{ppl.value:.6f}   {interval_text(ppl)}"),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    groups = [*group_parts(record, "label"), *group_parts(record, "depth")]
    shown = Facts(tuple(first), frozenset(("PPL", "model")))
    verdict = _verdict(record, f"{metric_words('ppl', ppl)} on {text_name(record.corpus)}")
    if not verbose:
        return Document((shown, *groups), run_data(record, folder), verdict)
    details = [*measured_rows(record), *ran_rows(record)]
    # Where the tokenizer tells how many bytes its tokens are.
    if found := record.metrics.get("bits_per_byte"):
        # Of pages, whose own bytes are others, the protocol has one as well.
        name = "bits per detokenized byte" if record.pages else "bits per byte"
        details.insert(0, (name, f"{found.value:.6f}   {interval_text(found)}"))
    groups += group_parts(record, "turn")
    return Document((shown, *groups, Facts(tuple(details))), run_data(record, folder), verdict)


def _verdict(record: Done, said: str) -> Verdict:
    """What is said of the model in a line, and which gates were met."""
    text = f"{label_of(record)}: {said}"
    if not (gates := record.gates):
        return Verdict(text)
    missed = [f"--{gate.name.replace('_', '-')} {gate.limit:g}" for gate in gates if not gate.met]
    met = f"{counted(len(gates), 'gate')} met" + ", without an interval" * bool(_bare(record))
    said = f"MISSED {', '.join(missed)}" if missed else met
    return Verdict(f"{text}; {said}", not missed)


def reference_document(record: Done, folder: Path, *, verbose: bool = False) -> Document:
    """The result of a run that was kept as a reference."""
    assert record.kept
    states, head = record.kept.states, record.kept.head
    size = states.rows * states.width * _BYTES[states.dtype]
    where = f"left in {head.checkpoint.path}" if head.checkpoint else "with them"
    kept = (
        ("states", f"{states.rows:,} of {states.width:,} {states.dtype}, "
                   f"{size / 1e9:.3f} GB"),
        ("head", f"{head.vocabulary:,} × {head.width:,} {head.dtype}, {where}"),
        ("reference", str(folder)),
    )  # fmt: skip
    document = run_document(record, folder, verbose=verbose)
    return replace(document, parts=(*document.parts, Facts(kept)))


def tasks_document(
    record: Done,
    section: Tasks,
    folder: Path,
    *,
    verbose: bool = False,
    margin: float | None = None,
) -> Document:
    """The metrics of a run's tasks and groups; against a base those of both, and what became of their
    answers, question by question."""
    rows = _section_rows(section)
    has_base = _has_base(section)
    table = Table(_TASK_COLUMNS + (_PAIRED_COLUMNS if has_base else ()), tuple(
        row if has_base else row[: len(_TASK_COLUMNS)] for row in rows
    ))  # fmt: skip
    asked = section.harness
    assert record.requests
    how = [f"lm-evaluation-harness {asked.lm_eval}"]
    how += [f"the first {asked.limit:g} questions"] if asked.limit is not None else []
    how += [f"{asked.num_fewshot} examples"] if asked.num_fewshot is not None else []
    how += ["by the model's chat template"] if asked.chat else []
    facts = [
        *headline_rows(record),
        ("asked", ", ".join(how)),
        ("requests", f"{record.requests.rows:,} in {record.plan.windows:,} windows, "
                     f"{record.plan.scored:,} targets"),
        *place_rows(folder, verbose=verbose),
    ]  # fmt: skip
    parts: list[Any] = [table.filled(), Facts(tuple(facts))]
    if verbose:
        parts.append(Facts((*measured_rows(record), *ran_rows(record))))
    return Document(tuple(parts), table, _answered(record, rows, margin))


def _answered(record: Done, rows: Sequence[tuple[Any, ...]], margin: float | None) -> Verdict:
    """The verdict on all tasks together, and the first metric of each group and task; against a base,
    which metrics differ beyond chance."""
    firsts = {name: row for name, *row in reversed(rows)}
    names = list(dict.fromkeys(row[0] for row in rows))
    said = []
    for name in names[:_SAID]:
        _, metric, value, _, _, change, *_ = firsts[name]
        told = "" if change is None else f" ({change:+.4f})"
        said.append(f"{name} {metric} {value:.4f}{told}")
    if len(names) > _SAID:
        said.append(f"and {len(names) - _SAID} more")
    text = f"{label_of(record)}: "
    if not record.reference:
        return Verdict(text + ", ".join(said))
    for one in record_verdicts(record.document, margin):
        words = one.words(base_of(record.reference).name, "question")
        text += f"{words.replace('this text', 'these questions')} of all tasks together; "
    text += ", ".join(said)
    intervals = [(f"{row[0]} {row[2]}", row[7]) for row in rows if row[7] is not None]
    changed = [what for what, (low, high) in intervals if low > 0 or high < 0]
    if changed:
        more = f" and {len(changed) - _SAID} more" if len(changed) > _SAID else ""
        text += f"; alone distinguishable from the base: {', '.join(changed[:_SAID])}{more}"
    elif intervals:
        text += "; no metric alone is distinguishable from the base's on these questions"
    return Verdict(text)


def tasks_of_runs(sections: Sequence[tuple[str, Tasks]]) -> Table | None:
    """Each metric of each task in every run that has it, side by side; None where no run has tasks.

    `sections`: the name of each run, and its record's section `tasks`.
    """
    rows = []
    for model, section in sections:
        for task, questions, metric, *values in _section_rows(section):
            rows.append((task, metric, printable(model), questions, *values))
    if not rows:
        return None
    # Of one metric all runs, in the order in which they came: sorting keeps it.
    order = {key: i for i, key in enumerate(dict.fromkeys((row[0], row[1]) for row in rows))}
    rows.sort(key=lambda row: order[row[:2]])
    columns = (
        _TASK_COLUMNS[0],
        _TASK_COLUMNS[2],
        words("model", "label", 9),
        _TASK_COLUMNS[1],
        *_TASK_COLUMNS[3:],
    )
    if any(_has_base(section) for _, section in sections):
        columns += _PAIRED_COLUMNS
    return Table(columns, tuple(row[: len(columns)] for row in rows)).filled()


def _section_rows(section: Tasks) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, group in section.groups.items():
        rows += _metric_rows(name, sum(section.tasks[t].questions for t in group.tasks), group)
    for name, task in section.tasks.items():
        rows += _metric_rows(name, task.questions, task)
    return rows


def _has_base(section: Tasks) -> bool:
    return any(task.base for task in section.tasks.values())


def _metric_rows(name: str, questions: int, part: Task | TaskGroup) -> Iterator[tuple[Any, ...]]:
    """A row for each metric of a task or group."""
    base, kld = part.base, part.kld if isinstance(part, Task) else None
    for metric, value in part.metrics.items():
        pair = (part.pairs or {}).get(metric)
        difference = pair.difference if pair else None
        yield (
            name,
            questions,
            metric.removesuffix(",none"),
            value,
            part.stderr.get(metric),
            base.metrics.get(metric) if base else None,
            difference and difference.value,
            difference and difference.ci95,
            *[
                None if pair is None or (n := getattr(pair, name)) is UNSET else n
                for name in ("lost", "gained", "p")
            ],
            kld.value if kld else None,
        )


def kld_document(
    record: Done, folder: Path, *, verbose: bool = False, margin: float | None = None
) -> Document:
    """The result; `verbose`: behind it details, breakdowns, and the tokens that differ most."""
    metrics = record.metrics
    first = [
        *_divergence(record),
        *page_rows(record),
        *_perplexities(metrics),
        *_checks(record),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    parts: list[Facts | Table | Prose] = [Facts(tuple(first), frozenset(_TABLED))]
    # They were asked for.
    parts += group_parts(record, "label")
    # Whether it fails late is what a long window is for.
    parts += group_parts(record, "depth")
    if verbose:
        rows = (*_details(record), *measured_rows(record), *ran_rows(record))
        parts += [Facts(rows), *group_parts(record, "turn"), *_breakdowns(record)]
        if record.worst:
            parts.append(worst_facts(record.worst))
    verdict = _verdict(record, _beside_base(record, margin))
    return Document(tuple(parts), run_data(record, folder), verdict)


def bounds_document(
    record: Done, folder: Path, *, verbose: bool = False, margin: float | None = None
) -> Document:
    """The result of a served model beside a base: what lies between them has bounds alone."""
    metrics = record.metrics
    kld, least, most = (metrics[name] for name in ("kld_least", "tv_least", "tv_most"))
    top1 = metrics["top1"]
    first = [
        ("KLD bound", f"≥ {kld.value:.6g} nats   {interval_text(kld, '.4g')}"),
        ("against", _reference(record.reference)),
        ("TV bounds", f"≥ {least.value:.3%} and ≤ {most.value:.3%}"),
        ("acceptance bounds", f"≥ {1 - most.value:.3%} and ≤ {1 - least.value:.3%}"),
        ("same top-1", f"{top1.value:.3%}   {interval_text(top1, '.3%')}"),
        *_perplexities(metrics),
        *_checks(record),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    parts: list[Facts | Table | Prose] = [Facts(tuple(first), frozenset(_TABLED))]
    parts += [*group_parts(record, "label"), *group_parts(record, "depth")]
    if verbose:
        rows = (*_agreement(metrics), *measured_rows(record), *ran_rows(record))
        parts += [Facts(rows), *group_parts(record, "turn")]
    (ratio,) = (
        one for one in record_verdicts(record.document, margin) if one.metric == "ppl_ratio"
    )
    base = base_of(record.reference).name if record.reference else "the base"
    said = f"{ratio.words(base)} ({metric_words('ppl_ratio', metrics['ppl_ratio'])})"
    bound = f"KLD ≥ {kld.value:.4g} nats, a bound"
    verdict = _verdict(record, f"{said}; {bound}")
    return Document(tuple(parts), run_data(record, folder), verdict)


def _beside_base(record: Done, margin: float | None) -> str:
    """What KLD and perplexity show of the model beside its base, each with its numbers."""
    base = base_of(record.reference).name if record.reference else "the base"
    found = {one.metric: one for one in record_verdicts(record.document, margin)}
    numbers = {key: metric_words(key, record.metrics[key]) for key in ("kld", "ppl_ratio")}
    if all(found[key].ci95 is None for key in numbers):
        # Why there is none stands in a row of its own.
        said = "not decidable with this text, too short for an interval"
        return f"{', '.join(numbers.values())}, against {base}; {said}"
    bases = {"kld": base}
    said = [f"{found[k].words(bases.get(k, ''))} ({words})" for k, words in numbers.items()]
    return "; ".join(said)


def _divergence(record: Done) -> Rows:
    """KLD, against what, and how alike the predictions are."""
    assert record.distribution
    metrics, spread = record.metrics, record.distribution["kld"]
    kld = metrics["kld"]
    shares = {"same top-1": metrics["top1"], "acceptance": metrics["acceptance"]}
    if (drafted := metrics.get("acceptance_draft")) and record.identity:
        shares[f"  at temperature {record.identity.draft:g}"] = drafted
    rows = [
        ("KLD", f"{kld.value:.6g} nats   {interval_text(kld, '.4g')}"),
        ("against", _reference(record.reference)),
        ("KLD p99", f"{spread['99']:.4g}, median {spread['50']:.4g}, max {spread['maximum']:.4g}"),
        *((said, f"{m.value:.3%}   {interval_text(m, '.3%')}") for said, m in shares.items()),
        ("confident flips", _flips(record)),
        *_survival(record),
    ]
    if floor := record.noise_floor:
        rows.insert(2, ("noise floor", _floor(kld.value, floor)))
    return rows


def _survival(record: Done) -> Rows:
    """How many tokens both generate alike; of text that a model generated, why that isn't told."""
    if not (found := record.survival):
        return []
    of = "of the base's samples" if found.sampled.by_base else "on this text"
    rows = [("half-life", f"{_half_life(found.sampled)}, sampled as alike as can be, {of}")]
    if greedy := found.greedy:
        said = f"half part by {_half_life(greedy)}"
        if (same := greedy.identical) is not None:
            said += f"; {same.value:.1%} the same to their end"
        if greedy.stopped:
            said += (
                f"; {counted(greedy.stopped, 'conversation')} followed only to where the base's own "
                "likeliest token is another"
            )
        rows.append(("greedy", said))
    elif record.corpus.generated and not found.sampled.by_base:
        rows.append(("greedy", f"no length: {found.greedy_note}"))
    return rows


def _half_life(curve: SurvivalCurve) -> str:
    ends = "(no interval)"
    if curve.ci95 is not None:
        ends = "95 % [{}, {}]".format(*(_tokens(end, curve) for end in curve.ci95))
    return f"{_tokens(curve.half_life, curve)} tokens   {ends}"


def _tokens(tokens: int | None, curve: SurvivalCurve) -> str:
    return f"more than {curve.longest:,}" if tokens is None else f"{tokens:,}"


def _flips(record: Done) -> str:
    """The rate at which the model finds another token likeliest where the base was sure of one."""
    assert record.thresholds
    confident, flips = record.thresholds.confident, record.metrics.get("confident_flips")
    if flips is None:
        return f"not known: the base gives no likeliest token more than {confident:g}"
    of = f"of {counted(flips.n, 'target')} where the base gave > {confident:g}"
    if not flips.value:
        return f"none {of}"
    ends = "(no interval)"
    if flips.ci95 is not None:
        ends = "95 % [{}, {}]".format(*map(rate, flips.ci95))
    return f"{rate(flips.value)} in 10,000   {ends}, {of}"


def _perplexities(metrics: Mapping[str, Metric]) -> Rows:
    ppl, base, ratio = metrics["ppl"], metrics["ppl_base"], metrics["ppl_ratio"]
    found = f"×{ratio.value:.6f}   {interval_text(ratio, '.6f')}"
    if ratio.ci95 is not None:
        found += f", paired: {_VERDICTS[verdict(ratio.ci95, 1.0, None)]}"
    return [
        ("PPL", f"{ppl.value:.6f}   {interval_text(ppl)}"),
        ("base PPL", f"{base.value:.6f}   {interval_text(base)}"),
        ("PPL / base", found),
    ]


def _details(record: Done) -> Rows:
    """The numbers that the first block leaves out."""
    assert record.distribution
    metrics, spread = record.metrics, record.distribution
    rows = [("KLD percentiles", _percentiles(spread["kld"]))]
    for metric, own in shown("details"):
        if (found := metrics.get(metric.key)) is not None:
            unit = f" {metric.unit}" if metric.unit else ""
            text = f"{found.value:{own.form}}{unit}   {interval_text(found, own.ends)}"
            rows.append((own.heading, text))
    if "entropy_change" in metrics:
        change, own, base = (metrics[k] for k in ("entropy_change", "entropy", "entropy_base"))
        said = f"{change.value:+.5g} nats   {interval_text(change, '+.4g')}"
        rows.append(("entropy", f"{own.value:.5g}, base {base.value:.5g}: {said}"))
    rows += _agreement(metrics)
    difference = metrics["ppl"].value - metrics["ppl_base"].value
    rows.append(("PPL - base PPL", f"{difference:+.6f}"))
    if "bits_per_byte" in metrics:
        both = metrics["bits_per_byte"], metrics["bits_per_byte_base"]
        rows.append(("bits per byte", "{:.6f}, base {:.6f}".format(*(m.value for m in both))))
    return rows


def _percentiles(spread: Mapping[str, float]) -> str:
    named = {"minimum": "min", "50": "median", "maximum": "max"}
    shown = ("minimum", "1", "10", "50", "90", "95", "99", "99.9", "maximum")
    return ", ".join(f"{named.get(p, f'p{p}')} {spread[p]:.3g}" for p in shown)


def _floor(kld: float, floor: NoiseFloor) -> str:
    words, value = floor.words, floor.kld.value
    if not floor.resolves:
        return f"below resolution: the base {words} gives the same bits"
    words = f"{value:.4g} nats, of the base {words}; the KLD is {kld / value:.3g} times that"
    return words if kld > value else f"{words}, and says nothing"


def _agreement(metrics: Mapping[str, Metric]) -> Rows:
    delta, rms = metrics["delta_p"], metrics["rms_delta_p"]
    rows = []
    for end, name in (("sets", "same top-k, any order"), ("order", "same top-k in order")):
        shares = [
            f"{k}: {metrics[f'top{k}_{end}'].value:.2%}"
            for k in (2, 3, 5, 10)
            if f"top{k}_{end}" in metrics
        ]
        if shares:
            rows.append((name, ", ".join(shares)))
    rows.append(("Δp of the target", f"mean {delta.value:+.3%}   {interval_text(delta, '+.3%')}"))
    rows.append(("", f"RMS {rms.value:.3%}   {interval_text(rms, '.3%')}"))
    return rows


def _checks(record: Done) -> Rows:
    """Gates, those not met in capitals."""
    return [("gate", _gate(gate, record)) for gate in record.gates or ()]


def _gate(gate: Gate, record: Done) -> str:
    flag = gate.name.replace("_", "-")
    words = f"--{flag} {gate.limit:g}: {gate.value:.6g}"
    if gate.bound is None:
        words += f" ({gate.note})"
    elif gate.on == "upper":
        end = "lower" if gate.name.startswith("min") else "upper"
        words += f", {end} bound {gate.bound:.6g}"
    # A terminal's color is by how the line ends.
    metric = record.metrics.get(gate.name.partition("_")[2])
    if metric is not None:
        chance = by_chance(gate.name, gate.limit, metric)
        words += f" ({chance})" if chance else ""
    words = f"{words}: {'met' if gate.met else 'NOT MET'}"
    if gate.on == "value" and (n := _bare(record)):
        words += f", {bare(n)}"
    return words


def _bare(record: Done) -> int:
    """The number of targets of a comparison whose text is too short for an interval, else 0."""
    kld = record.metrics["kld"]
    return 0 if kld.ci95 is not None else kld.n


def _reference(reference: Reference | UnsetType) -> str:
    if not reference:
        return "not named"
    said: list[str] = []
    engine = reference.engine or {}
    if engine.get("arithmetic") == "llama.cpp":
        said.append("in llama.cpp's arithmetic")
    elif cache := engine.get("kv_cache_dtype"):
        said.append(f"its KV cache in {cache}")
    if reference.checksum:
        said.append(f"checksum: {reference.checksum}")
    return base_words(reference, *said)


def _breakdowns(record: Done) -> list[Table | Prose]:
    """A table each; behind them, once, why groups have no interval where the whole text has one."""
    wanted = ("confidence", "position", "token_class")
    found = {k: v for k, v in groups_of(record).items() if k in wanted}
    notes = {g["kld"]["note"] for groups in found.values() for g in groups}
    said = sorted(notes - {None}) if record.metrics["kld"].ci95 is not None else []
    why = [Prose(f"no interval: {'; '.join(said)}")] if said else []
    return [*(_breakdown(of, groups) for of, groups in found.items()), *why]


def _breakdown(of: str, groups: Iterable[Mapping[str, Any]]) -> Table:
    columns = (
        Column(KINDS[of], None, escaped),
        number("share", None, ".2%"),
        measured("KLD", "kld", ".4g", importance=9),
        interval(".4g", importance=6),
        measured("PPL / base", "ppl_ratio", ".5f", "×", importance=8),
        interval(".5f", importance=4),
    )
    rows = []
    for group in groups:
        kld, ratio = metric_of(group["kld"]), metric_of(group["ppl_ratio"])
        assert kld and ratio
        rows.append((group["group"], group["share"], kld, kld.ci95, ratio, ratio.ci95))
    return Table(columns, tuple(rows))


def worst_facts(facts: Sequence[WorstTarget]) -> Table:
    """The targets of largest KLD, with the text before them."""
    header = {"largest KLD": 9, "text before": 4, "target": 9, "p base": 8, "p model": 8,
              "base's top-1": 7, "model's top-1": 7, "window:position": 3}  # fmt: skip
    rows = [
        (
            f"{fact.kld:.4g}",
            _before(fact.context or ""),
            _token(fact, "target"),
            f"{fact.p_base:.2%}",
            f"{fact.p_model:.2%}",
            _token(fact, "base_top1"),
            _token(fact, "top1"),
            f"{fact.window}:{fact.position}",
        )
        for fact in facts
    ]
    return Table(tuple(Column(head, None, importance=n) for head, n in header.items()), tuple(rows))


def _before(text: str) -> str:
    """The end of it, next to the target."""
    line = escaped(text)
    return line if len(line) <= _BEFORE else f"…{line[-_BEFORE:]}"


def _token(fact: WorstTarget, name: str) -> str:
    text = getattr(fact, f"{name}_text")
    if text is UNSET:
        return f"id {getattr(fact, name)}"
    text = escaped(text)
    return f'"{text}"' if len(text) <= _TOKEN else f'"{text[:_TOKEN]}…"'
