"""What the numbers of a section say, in a sentence or two, and no more than they say."""

from scoremode.report.page.chart_rows import preferred, quants
from scoremode.report.page.definition import Run, Section
from scoremode.report.page.wording import (
    interval_words,
    kld_words,
    percent,
    ppl_words,
    ratio_words,
    size_words,
)

__all__ = ["finding"]

_MOST = 7


def finding(section: Section) -> str:
    """Which run is closest to the base, and which are on the frontier of size and KLD."""
    runs = quants(section)
    if not runs:
        return "Only the base itself was measured."
    if section["ranked_by"] != "kld" or runs[0]["kld"] is None:
        return _lowest_perplexity(runs)
    words = [_closest(runs[0], alone=len(runs) == 1), _beside(section, runs)]
    return " ".join(part for part in [*words, _frontier(section, runs)] if part)


def _closest(run: Run, *, alone: bool) -> str:
    kld = run["kld"]
    assert kld is not None
    if kld["value"] == 0:
        return f"{run['name']} predicts exactly what its base does: the KLD is 0 at every token."
    facts = [f"mean KLD {kld_words(kld['value'])} nats {interval_words(kld, kld_words)}".strip()]
    if run["top1"] is not None:
        facts.append(f"the same likeliest token at {percent(run['top1']['value'])} of the places")
    if run["ppl_ratio"] is not None:
        facts.append(f"perplexity {ratio_words(run['ppl_ratio']['value'])}")
    if run["bytes"] is not None:
        facts.append(size_words(run["bytes"]))
    lead = "against its base" if alone else "is the closest to the base"
    return f"{run['name']} {lead}: {', '.join(facts)}."


def _beside(section: Section, runs: list[Run]) -> str:
    """Which runs the first can't be told apart from."""
    matrix = next((one for one in section["matrices"] if one["of"] == "kld"), None)
    if matrix is None:
        return ""
    names = {run["id"]: run["name"] for run in runs}
    first = runs[0]["id"]
    same = [
        names[test["b"] if test["a"] == first else test["a"]]
        for test in matrix["pairs"]
        if first in (test["a"], test["b"]) and test["verdict"] == "not distinguishable"
    ]
    return f"On this text it can't be told apart from {_listed(same)}." if same else ""


def _frontier(section: Section, runs: list[Run]) -> str:
    frontier = preferred(section) if section["frontiers"] else None
    if frontier is None or not frontier["id"].endswith("/kld") or len(frontier["points"]) < 2:
        return ""
    names = {run["id"]: run["name"] for run in runs}
    ahead = [names[one] for one in frontier["line"]]
    if len(ahead) == len(frontier["points"]):
        return "All lie on the frontier of size and KLD: each is the closest of its size."
    lie = "lies" if len(ahead) == 1 else "lie"
    return (
        f"{len(ahead)} of {len(frontier['points'])} {lie} on the frontier of size and KLD: "
        f"{_listed(ahead)}. For each of the others one of these is no larger and no further off."
    )


def _listed(names: list[str]) -> str:
    shown = (
        names if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    )
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _lowest_perplexity(runs: list[Run]) -> str:
    best = runs[0]
    ppl = f"{ppl_words(best['ppl']['value'])} {interval_words(best['ppl'], ppl_words)}".strip()
    lead = "a perplexity of" if len(runs) == 1 else "the lowest perplexity:"
    return f"{best['name']} has {lead} {ppl}."
