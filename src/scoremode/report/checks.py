"""Documents of `scoremode check` and `scoremode verify`: what held, and what did not."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scoremode.errors import escaped
from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Prose,
    Said,
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
# Characters of the text before a target that are shown.
_BEFORE = 24
_WORST_COLUMNS = (
    words("worst of", None, 9),
    Column("target", None, importance=9),
    Column("text before", None, importance=4),
    number("log p", None, ".3f", 6),
    number("other's", None, ".3f", 6),
    number("difference", None, "+.1e", 8),
    Column("window:position", None, importance=5),
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
    """Findings of `scoremode verify`: differences in nats a target, verdicts, the positions of the
    differences, and the targets that differ most."""
    engines, sample = value["engines"], value["sample"]
    facts = [
        ("model", value["checkpoint"]["source"]),
        ("protocol", protocol_words(decode(value["protocol"], Protocol))),
        ("text", text_words(decode(value["corpus"], Corpus))),
        ("windows", f"{len(sample['windows'])} of {value['plan']['windows']:,} (seed "
                    f"{sample['seed']}), {sample['scored']:,} targets"),
        ("reference", _reference(value["reference"])),
        *((name, told) for name, e in engines.items() if (told := _interpreter(e))),
    ]  # fmt: skip
    pairs = pairs_of(value)
    rows = []
    for pair in pairs:
        ppl = "" if pair.between else engines[pair.engine]["metrics"]["ppl"]["value"]
        rows.append((pair.name, ppl, *_difference(pair.found["difference"]), pair.words))
    table = Table(_DIFFERENCE_COLUMNS, tuple(rows))
    own = "; the reference's own arithmetic: proves that it repeats, no more"
    verdicts = [
        (
            pair.name if pair.between else pair.engine,
            pair.words + own * (not pair.between and engines[pair.engine]["is_reference"]),
        )
        for pair in pairs
    ]
    biases = (metric_of(pair.found["difference"]["bias"]) for pair in pairs)
    verdicts += without_interval(bias for bias in biases if bias)
    agreeing = "; ".join(map(_agreement, pairs))
    verdict = Verdict(f"{agreeing}, on {sample['scored']:,} targets", value["agree"])
    told = Facts(tuple(facts)), table, Facts(tuple(verdicts)), _by_position(pairs), _worst(pairs)
    return Document(tuple(part for part in told if part is not None), table, verdict)


class Pair(NamedTuple):
    """Two scorings of the same windows, of an engine and of the reference or, `between` two engines, of
    another; `found`: their difference, verdict, bins by position and worst targets."""

    engine: str
    other: str
    between: bool
    found: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.engine} - {self.other}"

    @property
    def words(self) -> str:
        return self.found["verdict"]["words"]


def pairs_of(value: Mapping[str, Any]) -> list[Pair]:
    """Every pair of a result of `scoremode verify`, those with the reference first."""
    with_reference = [
        Pair(name, "reference", False, e)
        for name, e in value["engines"].items()
        if value["reference"] is not None
    ]
    return with_reference + [Pair(b["engine"], b["other"], True, b) for b in value["between"]]


def _reference(reference: Mapping[str, Any] | None) -> str:
    if reference is None:
        return "none: engines are compared with one another alone"
    return (
        f"torch in {reference['compute']}, arithmetic {reference['engine']['arithmetic']}, row sums in "
        f"{reference['sums']}: PPL {reference['metrics']['ppl']['value']:.6f}"
    )


def _interpreter(engine: Mapping[str, Any]) -> str | None:
    """Where an engine ran that was not this process's, in words."""
    if (python := engine.get("interpreter")) is None:
        return None
    packages = (f"{name} {version}" for name, version in python["packages"].items())
    told = f"{python['path']} (Python {python['python']}; {', '.join(packages)})"
    variables = " ".join(f"{name}={value}" for name, value in engine["environment"].items())
    return escaped(f"{told} {variables}".strip())


def _by_position(pairs: Sequence[Pair]) -> Table | None:
    """The rms of each pair's differences, a row for each bin of positions, and how it grows."""
    bins = pairs[0].found["by_position"]
    if len(bins) < 2:
        return None
    columns = (
        Column("rms at position", None),
        Column("targets", None, lambda n: f"{n:,}"),
        *(number(pair.name, None, ".1e") for pair in pairs),
    )
    rows: list[tuple[Any, ...]] = [
        (
            f"{b['first']:,}–{b['last']:,}",
            b["n"],
            *(p.found["by_position"][i]["rms"] for p in pairs),
        )
        for i, b in enumerate(bins)
    ]
    ratios = [pair.found["growth"] for pair in pairs]
    if any(ratios):
        told = (None if ratio is None else Said(f"×{ratio:.2f}") for ratio in ratios)
        rows.append(("last / first", None, *told))
    return Table(columns, tuple(rows))


def _worst(pairs: Sequence[Pair]) -> Table | None:
    """The targets where each pair differs most."""
    rows = tuple(
        (
            pair.name,
            _spelled(target, "target"),
            f"…{escaped(target.get('context', ''))[-_BEFORE:]}",
            target["logprob"],
            target["other_logprob"],
            target["difference"],
            f"{target['window']}:{target['position']}",
        )
        for pair in pairs
        for target in pair.found["worst"]
    )
    return Table(_WORST_COLUMNS, rows) if rows else None


def _spelled(target: Mapping[str, Any], name: str) -> str:
    text = target.get(f"{name}_text")
    return f"id {target[name]}" if text is None else f'"{printable(text)}"'


def _agreement(pair: Pair) -> str:
    """Whether a pair agrees, in words."""
    verdict = pair.found["verdict"]
    other = pair.other if pair.between else "the float32 reference"
    if not verdict["agrees"]:
        return f"{pair.engine} DISAGREES with {other}"
    if verdict["arithmetic"] == "other":
        return f"{pair.engine} differs from {other} no more than other arithmetic explains"
    return f"{pair.engine} agrees with {other} within rounding"


def _difference(d: Mapping[str, Any]) -> tuple[Any, ...]:
    ratio, bias = metric_of(d["ppl_ratio"]), metric_of(d["bias"])
    return ratio, bias, bias, d["rms"], d["worst"], d["top1"]
