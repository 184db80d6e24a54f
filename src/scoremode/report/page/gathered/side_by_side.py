"""The targets that any run predicts most unlike the base, as all of them see it."""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.report.page.definition import Word, WorstTarget
from scoremode.report.page.gathered.numbers import rounded
from scoremode.report.page.gathered.summary import Compared, Place

__all__ = ["side_by_side", "worst_places"]

# Of all runs together, and of one at least.
_MOST, _LEAST = 40, 3


def worst_places(records: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Windows and positions of the worst targets of the records, a few of each.

    A place of the text that several runs get wrong is taken once, as that of the largest KLD.
    """
    with_any = [record for record in records if record.get("worst")]
    count = max(_LEAST, _MOST // max(1, len(with_any)))
    by_index: dict[int, Mapping[str, Any]] = {}
    for record in with_any:
        for target in record["worst"][:count]:
            known = by_index.get(target["index"])
            if known is None or target["kld"] > known["kld"]:
                by_index[target["index"]] = target
    return sorted((target["window"], target["position"]) for target in by_index.values())


def side_by_side(
    places: Sequence[Place],
    compared: Mapping[str, Compared],
    records: Mapping[str, Mapping[str, Any]],
    texts: Mapping[int, str],
) -> list[WorstTarget]:
    """What base and runs (id → what it is) say at `places`, the largest KLD of any run first.

    - `texts`: of token ids, for those that no record has a text of.
    """
    known = dict(texts) | _texts(records)
    contexts = _contexts(records)
    found = []
    for place in places:
        at = {run: of.at[place] for run, of in compared.items() if place in of.at}
        if at:
            found.append(_target(place, at, _worst_of(at, records), contexts.get(place), known))
    return sorted(found, key=lambda target: (-max(target["kld"]), target["index"]))


def _target(
    place: Place,
    at: Mapping[str, Mapping[str, Any]],
    worst_of: list[str],
    context: str | None,
    texts: Mapping[int, str],
) -> WorstTarget:
    def word(token: int) -> Word:
        return {"id": token, "text": texts.get(token)}

    # All are against one base: any of them tells of it.
    first = next(iter(at.values()))
    return {
        "window": place[0],
        "position": place[1],
        "index": first["index"],
        "context": context,
        "target": word(first["target"]),
        "base_p": rounded(first["base_p"]),
        "base_top1": word(first["base_top1"]),
        "base_top1_p": rounded(first["base_top1_p"]),
        "worst_of": worst_of,
        "runs": list(at),
        "p": [rounded(of["p"]) for of in at.values()],
        "top1": [word(of["top1"]) for of in at.values()],
        "top1_p": [rounded(of["top1_p"]) for of in at.values()],
        "kld": [rounded(of["kld"]) for of in at.values()],
    }


def _worst_of(at: Mapping[str, Mapping[str, Any]], records: Mapping[str, Any]) -> list[str]:
    """Runs whose record has that place of the text among its worst."""
    index = next(iter(at.values()))["index"]
    return [run for run in at if any(t["index"] == index for t in records[run].get("worst") or [])]


def _texts(records: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    """Token id → text, of all that the records tell of their worst targets."""
    found: dict[int, str] = {}
    for record in records.values():
        for target in record.get("worst") or []:
            for name in ("target", "base_top1", "top1"):
                if (text := target.get(f"{name}_text")) is not None:
                    found.setdefault(target[name], text)
    return found


def _contexts(records: Mapping[str, Mapping[str, Any]]) -> dict[Place, str]:
    return {
        (target["window"], target["position"]): target["context"]
        for record in records.values()
        for target in record.get("worst") or []
        if target.get("context") is not None
    }
