"""Documents of `scoremode check` and `scoremode verify`: what held, and what did not."""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Prose,
    Table,
    Verdict,
    data,
    ends,
    measured,
    metric_of,
    number,
    printable,
    without_interval,
    words,
)
from scoremode.report.facts import protocol_words, text_words
from scoremode.results.record.section import decode
from scoremode.results.record.text import Corpus, Protocol

_WORDS = {"held": "held", "unchecked": "could not be checked", "wrong": "WRONG"}
_COLUMNS = (
    words("run", "run"),
    words("part", "part"),
    words("what", "what"),
    words("result", "result"),
    Column("found", "found"),
)
_DIFFERENCE_COLUMNS = (
    Column("nats a target", "difference"),
    # Two engines have none together.
    Column("PPL", "ppl", lambda ppl: f"{ppl:.6f}" if ppl else ""),
    measured("PPL ratio", "ppl_ratio", ".7f", "×", importance=7),
    measured("bias", "bias_nats", "+.1e", importance=8),
    Column("95 % of bias", None, lambda m: "none" if m.ci95 is None else ends(m, "+.1e")),
    number("rms", "rms_nats", ".1e", 8),
    number("worst", "worst_nats", "+.1e", 6),
    number("same top-1", "top1_share", ".2%", 7),
    data("verdict"),
)


def check_document(value: Mapping[str, Any], *, verbose: bool = False) -> Document:
    """The findings of each run and the total; those that held are a line a part unless `verbose`."""
    parts: list[Facts | Prose] = []
    for run in value["runs"]:
        facts = [("run", printable(run["run"]))]
        if run["model"] is not None:
            facts.append(("model", printable(run["model"])))
        if again := run.get("second_run"):
            facts += [("second run", _second_run(again)), ("would find", _would_find(again))]
        names = ", ".join(map(printable, run["not_checked"]))
        told = [("not checked", f"nothing holds these fields of the record: {names}")]
        found = _rows(run["findings"], verbose=verbose)
        parts += [Facts(tuple(facts)), Facts((*found, *told))]
    rows = tuple(
        (run["run"], f["part"], f["name"], f["status"], f["words"])
        for run in value["runs"]
        for f in (
            *run["findings"],
            *({"part": "record", "name": name, "status": "not checked", "words": ""}
              for name in run["not_checked"]),
        )
    )  # fmt: skip
    parts += [Prose("\n".join(map(printable, value["left_out"])))] if value["left_out"] else []
    total = check_total(value)
    return Document(
        (*parts, Prose(total)),
        Table(_COLUMNS, rows),
        Verdict(total, not value["counts"]["wrong"]),
    )


def check_total(value: Mapping[str, Any]) -> str:
    """The result in a line: how much held, could not be checked, and is wrong."""
    counts = value["counts"]
    return (
        f"held: {counts['held']}; could not be checked: {counts['unchecked']}; wrong: "
        f"{counts['wrong']}"
    )


def _rows(findings: Sequence[Mapping[str, Any]], *, verbose: bool) -> list[tuple[str, str]]:
    rows = []
    for part in dict.fromkeys(f["part"] for f in findings):
        own = [f for f in findings if f["part"] == part]
        held = [f for f in own if f["status"] == "held"]
        if verbose or len(held) == 1:
            rows += [(f"{part}: {f['name']}", _line("held", f["words"])) for f in held]
        elif held:
            rows.append((part, f"held: {len(held)} ({_names(held)})"))
        # The same reason once.
        why: dict[tuple[str, str], list[str]] = {}
        for f in own:
            if f["status"] != "held":
                why.setdefault((f["status"], f["words"]), []).append(f["name"])
        for (status, reason), names in why.items():
            label = names[0] if len(names) == 1 else f"{len(names)} of them"
            rows.append((f"{part}: {label}", _line(status, reason)))
    return rows


def _line(status: str, reason: str) -> str:
    return f"{_WORDS[status]}: {reason}" if reason else _WORDS[status]


def _names(held: Sequence[Mapping[str, Any]]) -> str:
    names = [f["name"] for f in held]
    return ", ".join(names if len(names) <= 4 else [*names[:3], "…", names[-1]])


def _second_run(again: Mapping[str, Any]) -> str:
    return (
        f"{len(again['windows'])} of {again['of_windows']:,} windows by {again['model']}, whole "
        f"micro-batches drawn with seed {again['seed']}; {again['targets']:,} targets"
    )


def _would_find(again: Mapping[str, Any]) -> str:
    """The probability that such a draw finds windows whose scores were changed."""
    found = again["found_probability"].items()
    told = ", ".join(f"{float(p):.3g} for {int(n):,} of them" for n, p in found)
    return f"a change of windows' scores with a probability of at least {told}"


def verify_document(value: Mapping[str, Any]) -> Document:
    """Findings of `scoremode verify`: differences in nats a target, and a verdict an engine."""
    engines, reference, sample = value["engines"], value["reference"], value["sample"]
    ppl = reference["metrics"]["ppl"]["value"]
    facts = [
        ("model", value["checkpoint"]["source"]),
        ("protocol", protocol_words(decode(value["protocol"], Protocol))),
        ("text", text_words(decode(value["corpus"], Corpus))),
        ("windows", f"{len(sample['windows'])} of {value['plan']['windows']:,} (seed "
                    f"{sample['seed']}), {sample['scored']:,} targets"),
        ("reference", f"torch in {reference['compute']}, arithmetic "
                      f"{reference['engine']['arithmetic']}, row sums in {reference['sums']}: "
                      f"PPL {ppl:.6f}"),
    ]  # fmt: skip
    rows = []
    for name, e in engines.items():
        verdict = e["verdict"]["words"]
        own = e["metrics"]["ppl"]["value"]
        rows.append((f"{name} - reference", own, *_difference(e["difference"]), verdict))
    for b in value["between"]:
        between = f"{b['engine']} - {b['other']}"
        rows.append((between, "", *_difference(b["difference"]), None))
    table = Table(_DIFFERENCE_COLUMNS, tuple(rows))
    own = "; the reference's own arithmetic: proves that it repeats, no more"
    verdicts = [
        (name, e["verdict"]["words"] + (own if e["is_reference"] else ""))
        for name, e in engines.items()
    ]
    biases = (metric_of(engine["difference"]["bias"]) for engine in engines.values())
    verdicts += without_interval(bias for bias in biases if bias)
    agreeing = "; ".join(map(_agreement, engines, engines.values()))
    verdict = Verdict(f"{agreeing}, on {sample['scored']:,} targets", value["agree"])
    return Document((Facts(tuple(facts)), table, Facts(tuple(verdicts))), table, verdict)


def _agreement(name: str, engine: Mapping[str, Any]) -> str:
    """Whether an engine agrees with the reference, in words."""
    verdict = engine["verdict"]
    if not verdict["agrees"]:
        return f"{name} DISAGREES with the float32 reference"
    if verdict["arithmetic"] == "other":
        return f"{name} differs from the float32 reference no more than other arithmetic explains"
    return f"{name} agrees with the float32 reference within rounding"


def _difference(d: Mapping[str, Any]) -> tuple[Any, ...]:
    ratio, bias = metric_of(d["ppl_ratio"]), metric_of(d["bias"])
    return ratio, bias, bias, d["rms"], d["worst"], d["top1"]
