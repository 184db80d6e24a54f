"""The metrics: a row for each, with all that the program knows of it.

`results.statistics` computes what the rows say, and every table, the page, the card, CSV and
docs/statistics.md (`python tools/reference_docs.py`) are made from them. So a new metric is a row, its
column, and a test.

A metric against a base is the mean of a `column` of Scores, or a percentile of the KLD. Those without
either have a function of their own: `ppl` and `nll`, of the model and of the base, are
`statistics.bootstrap.perplexity`; `bits_per_byte` is in `record.sections`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Base, Bounds, Comparison, Scores

Floats = NDArray[np.float64]
Column = Callable[[Scores, Any], NDArray | None]

# What the number is: it decides its unit in data, and how the page says it. A `rate` is a share of what
# is rare, which readers are told in 10,000.
Kind = Literal["perplexity", "ratio", "nats", "bits", "share", "rate"]
_UNITS = {"nats": "nats", "share": "share", "rate": "share"}

# A hundredth of the perplexity, or of a nat: on text of the base's own the logarithm of the ratio is on
# average the KLD, so that both have one margin.
MARGIN = 0.01

# Where a metric is shown: tables of runs, a card, the page's ranking and its tables of groups; the
# facts of a run with -v; groups of a run alone, of one against a base (in the first table, and in the
# further ones of `show --groups`), and by depth.
Place = Literal[
    "runs",
    "card",
    "page",
    "page groups",
    "details",
    "groups alone",
    "groups",
    "groups, more",
    "groups, tails",
    "depth",
]


@dataclass(frozen=True)
class Shown:
    """How a metric stands in one place; what is empty is as the metric itself has it.

    - `form`: the number's format; `ends` that of its interval.
    - `interval`: whether the place has the interval beside the number.
    """

    place: Place
    form: str = ""
    heading: str = ""
    ends: str = ""
    interval: bool = True


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    - `key`: its name in a record. `words`: its definition, in Markdown. `family`: the name in the
      documentation of the metrics that share a row there, the first of which has the words.
    - `heading`: of a column. `form`: the format of the number.
    - `better`: the direction; None where neither is.
    - `base`: whether it needs a base.
    - `column`: float64, int or bool [N], whose mean it is, of the Scores and what they have of the
      base, which must be of the class `needs`; None where it lacks a column.
      `where`: bool [N], the targets that count, of the base's columns and the probability from which it
      is sure. `then`: a growing function of the mean.
    - `percent`: of a percentile of the KLD, instead of a column.
    - `by_group`: whether it is also measured for each group of `--group-by`.
    - `rare`: a share of what may not have been seen at all.
    - `margin`: the distance from the base that is of no consequence, of a ratio as a share; None of a
      metric that has no verdict (`statistics.verdict`).
    - `importance`: of its columns where a terminal is too narrow for all (`report.document.Column`).
    - `hub`: type and name of the metric in a model card's metadata.
    """

    key: str
    words: str
    kind: Kind = "nats"
    heading: str = ""
    form: str = ".4g"
    better: Literal["lower", "higher"] | None = "lower"
    base: bool = True
    column: Column | None = None
    needs: type[Base] = Comparison
    where: Callable[[Comparison, float], NDArray[np.bool_]] | None = None
    then: Callable[[Floats], Floats] | None = None
    percent: float | None = None
    by_group: bool = False
    rare: bool = False
    margin: float | None = None
    importance: int = 4
    hub: tuple[str, str] | None = None
    family: str = ""
    places: tuple[Shown, ...] = ()

    @property
    def data_key(self) -> str:
        """Its name in CSV: with the unit, where it has one."""
        unit = _UNITS.get(self.kind)
        return self.key if unit is None else f"{self.key}_{unit}"

    @property
    def unit(self) -> str:
        """The unit behind the number, in words; "" where the number has none."""
        return "nats" if self.kind == "nats" else ""

    @property
    def sign(self) -> str:
        """The sign before the number, wherever people read it: a factor is no difference."""
        return "×" if self.kind == "ratio" else ""

    @property
    def of_groups(self) -> bool:
        """Whether groups of targets have it."""
        return self.by_group or any("group" in own.place for own in self.places)

    @property
    def of_few(self) -> bool:
        """Whether few targets decide it, so that it may have no interval where others do."""
        return self.rare or self.percent is not None


def log_ratio(scores: Scores, against: Base) -> Floats:
    """float64 [N]: nll − the base's nll. Its mean is the logarithm of the ratio of perplexities."""
    return against.base_logprob - scores.logprob


def delta_p(scores: Scores, against: Base) -> Floats:
    """float64 [N]: q(target) − p(target)."""
    return np.exp(scores.logprob) - np.exp(against.base_logprob)


def _right(scores: Scores) -> NDArray[np.bool_]:
    """bool [N]: whether the model finds the text's own token likeliest."""
    return scores.top1 == scores.target


def _base_right(scores: Scores, against: Base) -> NDArray[np.bool_]:
    return against.base_top1 == scores.target


def _entropy_change(scores: Scores, against: Comparison) -> Floats | None:
    if against.model_entropy is None or against.base_entropy is None:
        return None
    return against.model_entropy - against.base_entropy


def _both_entropies(name: str) -> Column:
    def column(scores: Scores, against: Comparison) -> Floats | None:
        known = _entropy_change(scores, against) is not None
        return getattr(against, name) if known else None

    return column


def _same_set(k: int) -> Column:
    def column(scores: Scores, against: Comparison) -> NDArray | None:
        return None if against.topk_sets is None else against.topk_sets >> (k - 1) & 1

    return column


def _same_order(k: int) -> Column:
    def column(scores: Scores, against: Comparison) -> NDArray | None:
        return None if against.topk_order is None else against.topk_order >= k

    return column


def _is_sure(against: Comparison, confident: float) -> NDArray[np.bool_]:
    return np.exp(against.base_top1_logprob) > confident


_TOPK = (
    "K = 1 … 10: share where the K likeliest are the same ones, or the same ones in order",
    "`topK_sets`, `topK_order`",
)

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("nll", "mean of −ln q(target), in nats", base=False),
    MetricSpec(
        "ppl",
        "exp(`nll`)",
        kind="perplexity",
        heading="PPL",
        form=".4f",
        base=False,
        importance=5,
        hub=("perplexity", "Perplexity"),
        places=(
            Shown("runs"),
            Shown("card"),
            Shown("page"),
            Shown("groups alone"),
            Shown("depth", interval=False),
            Shown("groups, more", ".3f", interval=False),
        ),
    ),
    MetricSpec(
        "bits_per_byte",
        "Σ −ln q(target) / (ln 2 · Σ bytes of the targets)",
        kind="bits",
        base=False,
    ),
    MetricSpec(
        "ppl_base",
        "the base's own, of the same targets",
        kind="perplexity",
        better=None,
        family="`ppl_base`, `nll_base`, `bits_per_byte_base`",
    ),
    MetricSpec("nll_base", "", better=None, family="`ppl_base`, `nll_base`, `bits_per_byte_base`"),
    MetricSpec(
        "bits_per_byte_base",
        "",
        kind="bits",
        better=None,
        family="`ppl_base`, `nll_base`, `bits_per_byte_base`",
    ),
    MetricSpec(
        "ppl_ratio",
        "exp(mean of `nll` − `nll_base`) = PPL / PPL of the base",
        kind="ratio",
        heading="PPL / base",
        form=".4f",
        column=log_ratio,
        needs=Base,
        then=np.exp,
        margin=MARGIN,
        importance=8,
        hub=("perplexity_ratio", "Perplexity / base's"),
        places=(
            Shown("runs", ".5f"),
            Shown("card"),
            Shown("page"),
            Shown("page groups"),
            Shown("groups", heading="PPL/base"),
            Shown("depth", heading="PPL/base"),
        ),
    ),
    MetricSpec(
        "kld",
        "mean of KL(base‖model) = Σ p ln(p/q) over the vocabulary, in nats",
        heading="KLD (nats)",
        column=lambda scores, against: against.kld,
        margin=MARGIN,
        importance=9,
        hub=("kl_divergence", "KL divergence from the base (nats)"),
        places=(
            Shown("runs"),
            Shown("card"),
            Shown("page", heading="mean KLD (nats)"),
            Shown("page groups", heading="mean KLD"),
            Shown("groups", ".3g", "KLD"),
            Shown("depth", ".3g", "KLD"),
        ),
    ),
    MetricSpec(
        "kld_least",
        "a bound, in nats: the mean KL(base‖model) is at least this. For a served model, of which the "
        "likeliest ids alone are known: all others are one event (the data-processing inequality)",
        heading="KLD ≥ (bound)",
        column=lambda scores, against: against.kld_least,
        needs=Bounds,
        importance=9,
        places=(Shown("runs"), Shown("card")),
    ),
    MetricSpec(
        "tv_least",
        "bounds: the mean total variation is at least, and at most, this, for a served model",
        kind="share",
        heading="total variation ≥ (bound)",
        column=lambda scores, against: against.tv_least,
        needs=Bounds,
        family="`tv_least`, `tv_most`",
    ),
    MetricSpec(
        "tv_most",
        "",
        kind="share",
        heading="total variation ≤ (bound)",
        column=lambda scores, against: against.tv_most,
        needs=Bounds,
        family="`tv_least`, `tv_most`",
    ),
    MetricSpec(
        "kld_p99",
        "99th percentile of the KLD, as in `distribution`, with an interval",
        heading="KLD p99",
        percent=99.0,
        by_group=True,
        places=(
            Shown("runs", interval=False),
            Shown("card", interval=False),
            Shown("page", heading="KLD 99 %", interval=False),
            Shown("details", ".6g", "KLD 99 %", ".4g"),
            Shown("groups, tails", ".3g"),
        ),
    ),
    MetricSpec(
        "kld_p999",
        "99.9th percentile of the KLD, as in `distribution`, with an interval",
        heading="KLD p99.9",
        percent=99.9,
        by_group=True,
        places=(
            Shown("page", heading="KLD 99.9 %"),
            Shown("details", ".6g", "KLD 99.9 %", ".4g"),
            Shown("groups, tails", ".3g"),
        ),
    ),
    MetricSpec(
        "kld_reverse",
        "mean of KL(model‖base)",
        heading="KLD(model‖base)",
        column=lambda scores, against: against.kld_reverse,
        places=(Shown("details", ".6g", ends=".4g"),),
    ),
    MetricSpec(
        "jsd",
        "mean Jensen-Shannon divergence, ½KL(p‖m) + ½KL(q‖m) with m = (p + q)/2; at most ln 2 "
        "(Lin, 1991)",
        heading="Jensen-Shannon",
        column=lambda scores, against: against.jsd,
        places=(Shown("details", ".6g", ends=".4g"),),
    ),
    MetricSpec(
        "top1",
        "share of targets where both find the same token the likeliest",
        kind="share",
        heading="same top-1",
        form=".2%",
        better="higher",
        column=lambda scores, against: scores.top1 == against.base_top1,
        needs=Base,
        importance=7,
        hub=("top1_agreement", "Same top-1 as the base (share)"),
        places=(
            Shown("runs", interval=False),
            Shown("card", interval=False),
            Shown("page"),
            Shown("page groups"),
            Shown("groups", ".1%", "top-1", interval=False),
            Shown("groups, more"),
            Shown("depth", ".1%", "top-1", interval=False),
        ),
    ),
    MetricSpec(
        "acceptance",
        "1 − `tv`: the share of tokens drafted by sampling from the model that speculative sampling "
        "accepts, with the base as its target at temperature 1 (Leviathan et al., 2023); also the "
        "largest share of tokens that both can sample alike",
        kind="share",
        heading="acceptance",
        form=".2%",
        better="higher",
        column=lambda scores, against: 1 - against.tv,
        # A model is called distribution-lossless from 0.99 on (arXiv 2605.02404).
        margin=0.01,
        importance=6,
        hub=("acceptance", "Expected acceptance of its drafts by the base (share)"),
        places=(
            Shown("runs", interval=False),
            Shown("card", interval=False),
            Shown("page"),
            Shown("page groups"),
            Shown("groups, more", ".2%", interval=False),
            Shown("depth", ".2%", interval=False),
        ),
    ),
    MetricSpec(
        "acceptance_draft",
        "the same of drafts sampled at the temperature of `--draft`, with the base as its target there",
        kind="share",
        heading="acceptance, --draft",
        form=".2%",
        better="higher",
        column=lambda scores, against: None if against.tv_draft is None else 1 - against.tv_draft,
    ),
    MetricSpec(
        "tv",
        "mean total variation, ½ Σ |p − q| over the vocabulary",
        kind="share",
        heading="total variation",
        column=lambda scores, against: against.tv,
        places=(Shown("details", ".6g", ends=".4g"),),
    ),
    MetricSpec(
        "delta_p",
        "mean and root mean square of q(target) − p(target)",
        kind="share",
        better=None,
        column=delta_p,
        needs=Base,
        family="`delta_p`, `rms_delta_p`",
    ),
    MetricSpec(
        "rms_delta_p",
        "",
        kind="share",
        column=lambda scores, against: delta_p(scores, against) ** 2,
        needs=Base,
        then=np.sqrt,
        family="`delta_p`, `rms_delta_p`",
    ),
    MetricSpec(
        "entropy_base",
        "means of −Σ p ln p and of −Σ q ln q",
        better=None,
        column=_both_entropies("base_entropy"),
        family="`entropy_base`, `entropy`",
    ),
    MetricSpec(
        "entropy",
        "",
        better=None,
        column=_both_entropies("model_entropy"),
        family="`entropy_base`, `entropy`",
    ),
    *(
        MetricSpec(
            f"top{k}_{name}",
            _TOPK[0] if (k, name) == (1, "sets") else "",
            kind="share",
            better="higher",
            column=column(k),
            family=_TOPK[1],
        )
        for name, column in (("sets", _same_set), ("order", _same_order))
        for k in range(1, 11)
    ),
    MetricSpec(
        "confident_flips",
        "of the targets where the base gave its likeliest token more than 0.9 (`--confident`), the "
        "share where the model finds another one likeliest; tables have it in 10,000",
        kind="rate",
        heading="flips/10k",
        column=lambda scores, against: scores.top1 != against.base_top1,
        where=_is_sure,
        by_group=True,
        rare=True,
        places=(
            Shown("page groups", heading="confident flips"),
            Shown("groups", interval=False),
            Shown("groups, more"),
        ),
    ),
    MetricSpec(
        "lost",
        "share of targets whose own token the base finds the likeliest, and the model doesn't",
        kind="share",
        heading="right → wrong",
        form=".2%",
        column=lambda scores, against: _base_right(scores, against) & ~_right(scores),
        needs=Base,
        rare=True,
        places=(Shown("details", ".3%"),),
    ),
    MetricSpec(
        "gained",
        "share of targets whose own token the model finds the likeliest, and the base doesn't",
        kind="share",
        heading="wrong → right",
        form=".2%",
        better="higher",
        column=lambda scores, against: _right(scores) & ~_base_right(scores, against),
        needs=Base,
        rare=True,
        places=(Shown("details", ".3%"),),
    ),
    MetricSpec(
        "accuracy_change",
        "`gained` less `lost`: the share of targets whose own token is the likeliest, less the base's",
        kind="share",
        heading="right, less the base's",
        form="+.2%",
        better="higher",
        column=lambda scores, against: (
            _right(scores).astype(np.float64) - _base_right(scores, against)
        ),
        needs=Base,
        places=(Shown("details", "+.3%"),),
    ),
    MetricSpec(
        "halved",
        "share of targets with q(target) < p(target) / 2",
        kind="share",
        heading="below half",
        form=".2%",
        column=lambda scores, against: scores.logprob < against.base_logprob + math.log(0.5),
        by_group=True,
        rare=True,
        places=(Shown("details", ".3%", "fell below half"), Shown("groups, more")),
    ),
    MetricSpec(
        "entropy_change",
        "`entropy` less `entropy_base`",
        heading="entropy",
        form="+.4g",
        better=None,
        column=_entropy_change,
        by_group=True,
        places=(Shown("groups, tails", "+.3g"),),
    ),
)
METRIC = {metric.key: metric for metric in METRICS}


def shown(place: Place) -> list[tuple[MetricSpec, Shown]]:
    """The metrics that a place shows, in their order, and how."""
    return [
        (metric, Shown(own.place, own.form or metric.form, own.heading or metric.heading,
                       own.ends or own.form or metric.form, own.interval))
        for metric in METRICS
        for own in metric.places
        if own.place == place
    ]  # fmt: skip
