"""The report's data, which `report_data` makes of finished runs, and which the page embeds as JSON and
draws.

Plain JSON without NaN or infinity; None where there is nothing. The same runs give the same bits.
Divergences and nll are in nats, sizes in bytes, probabilities and shares from 0 to 1. Numbers of
tables are the record's in full; those of charts and of the worst targets are rounded to 7
significant digits, far below what can be drawn.

**What texts may hold.** Names, sources, commands and texts of tokens come from models, corpora and
users: they may hold anything that Python's str can, such as `<script>`, control characters, lone
surrogates, and marks that turn the direction of writing. They are kept as they are. Whoever draws
escapes them, and shows white space and control characters so that they are seen.

A chart is one `Chart` whatever it shows; `x.scale` and `bins` tell how to draw it, `series` what.
All arrays of a series have the same length, and with `bins` that of `bins`.
"""

from typing import Any, Literal, NotRequired, TypedDict

Standing = Literal["frontier", "beaten", "not distinguishable", "not known"]

SCHEMA = "scoremode.report"
SCHEMA_VERSION = 1
Verdict = Literal["lower", "higher", "not distinguishable", "not known"]


class Axis(TypedDict):
    """`label` for people, `unit` behind it ("nats", "bytes", …; "" for none). `scale`: of
    "category" the bins' names stand on the axis. `least`, `most`: what to show, where a fixed range
    is right."""

    label: str
    unit: str
    scale: Literal["linear", "log", "category"]
    least: float | None
    most: float | None


class Bin(TypedDict):
    """A bin of x: its `name`; `lower` ≤ x < `upper`, both None for a category; `share` of all
    targets in it, None where it differs from run to run (a histogram's, whose shares are the
    series' y)."""

    name: str
    lower: float | None
    upper: float | None
    share: float | None


class Series(TypedDict):
    """One run's: `run` is its id. `x`: in the middle of the bin where there are bins, its number
    where they are categories. `lower`, `upper`: 95 % of `y`, None where there is no interval. `n`:
    targets behind each y. A y is None where a bin is empty."""

    run: str
    x: list[float]
    y: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    n: list[int]


class Chart(TypedDict):
    """A chart of all runs. `id`: a key of `CHARTS` (charts.py), of which those with `group:` are one of
    the record's groupings; of `group:label` further ones with `:` and a metric other than KLD behind.

    - `title`, `words`: what it shows, and in one or two sentences how to read it.
    - `kind`: `line` (points joined, with a band), `bars` (a bar a bin and run, or a step line).
    - `bins`: None for a line over plain x.
    """

    id: str
    title: str
    words: str
    kind: Literal["line", "bars"]
    x: Axis
    y: Axis
    bins: list[Bin] | None
    series: list[Series]


class Tail(Series):
    """The share of a run's targets (y) whose KLD is x (nats) or more: a step curve whose points are
    chosen so that straight lines between them on logarithmic axes are off by at most `error`
    decades.

    - `lower`, `upper`: None but at every few points, where the band has its corners; `n`:
      those targets.
    - `below`: targets whose KLD is below the first x, most of them rounding's or exactly 0.
    """

    error: float
    below: int


class Point(TypedDict):
    """A run of a frontier chart: `x`, `y` with its interval.

    - `standing`: `frontier` (no run is at most as large and at most as far, and one of both less);
      `beaten` by `by` (ids of all such runs, smallest first); `not distinguishable` where it is
      beaten by value, and the paired difference from none of `by` holds after Holm's correction (of
      a percentile: their intervals meet); `not known` where a paired test isn't there to tell, and
      it is beaten by value.
    - `same_as`: ids of no larger runs from which it can't be told apart, whatever its standing: on
      the frontier, its further bytes buy nothing that this text shows. None where not known.
    """

    run: str
    x: float
    y: float
    lower: float | None
    upper: float | None
    standing: Standing
    by: list[str]
    same_as: list[str] | None


class Frontier(TypedDict):
    """A chart of size against quality. `id` is `X/Y` of the keys of Run: X `bytes`, `bits_body` or
    `bits_file`; Y `kld`, `ppl_ratio` or `kld_p999`, and in a section without a base `ppl`.

    - `points`: of the runs that have both; runs of the base itself are left out. By x, then y.
    - `line`: ids of the frontier's runs, by x: a step line goes right, then down through them.
    - `base`: the base's place, None where its size isn't known; its y is 0, which isn't on a
      logarithmic axis, a ratio's 1.
    - `tested`: the matrix (`kld` or `nll`) whose tests `standing` uses; None for a percentile.
    """

    id: str
    x: Axis
    y: Axis
    points: list[Point]
    line: list[str]
    base: tuple[float, float] | None
    tested: Literal["kld", "nll"] | None


class Measured(TypedDict):
    """A number and its 95 % interval `lower` … `upper`, None with the reason in `note` where there
    is none; over `n` targets."""

    value: float
    lower: float | None
    upper: float | None
    n: int
    note: str | None


class Difference(TypedDict):
    """Run `a` less run `b` (ids), target by target: mean `value`, its own 95 % interval, and the
    p-value of "no difference", as it is and corrected by Holm over all pairs of the matrix.

    - `verdict`: on `a`: `lower` or `higher` where `p_holm` is below 0.05, else `not
      distinguishable`; `not known` where there are too few blocks for a test (then both p are
      None).
    - `ratio`: of an nll, exp(value): PPL of `a` / PPL of `b`; else None.
    """

    a: str
    b: str
    value: float
    lower: float | None
    upper: float | None
    ratio: float | None
    p: float | None
    p_holm: float | None
    verdict: Verdict


class Matrix(TypedDict):
    """Every pair of the runs in `order` (ids, best first) once, a before b. `of`: `kld` or `nll`."""

    of: Literal["kld", "nll"]
    unit: str
    order: list[str]
    pairs: list[Difference]
    note: str | None


class Word(TypedDict):
    """A token: its `id`, and its `text` where that is known."""

    id: int
    text: str | None


class WorstTarget(TypedDict):
    """One target as the base and all runs see it.

    - `window`, `position` in it, `index` in the token stream; `context`: the text before it, at
      most 12 tokens, None where no record has it.
    - `base_p`: the base's probability of `target`; `base_top1` its likeliest token, and
      `base_top1_p`.
    - `worst_of`: ids of the runs among whose worst it is.
    - `runs`: ids; `p` (of the target), `top1` and `top1_p`, `kld` of each of them, in that order.
      Where windows overlap they are all of this one evaluation.
    """

    window: int
    position: int
    index: int
    context: str | None
    target: Word
    base_p: float
    base_top1: Word
    base_top1_p: float
    worst_of: list[str]
    runs: list[str]
    p: list[float]
    top1: list[Word]
    top1_p: list[float]
    kld: list[float]


class Fact(TypedDict):
    """A line of a table of facts."""

    label: str
    value: str


class Provenance(TypedDict):
    """The commands, versions, files and hashes that made a run, from its record. `facts`: for
    people (device, arithmetic, dtype, kernels, seconds, …). `hashes`: name → sha256 in hex;
    `files`: those of the model's files, at most 12, the rest counted in `more_files`. `seconds` by
    stage, `total` included."""

    command: list[str] | None
    created: str | None
    finished: str | None
    versions: dict[str, str]
    hashes: dict[str, str]
    files: dict[str, str]
    more_files: int
    seconds: dict[str, float]
    facts: list[Fact]


class Run(TypedDict):
    """A finished run.

    - `id`: in this report. `model`: a number from 0, the same for runs of one checkpoint in several
      sections: take colours by it. `name`: its label, which tells it from all others; `source`: in
      full.
    - `is_base`: a run of the base's own files that is not at a distance from it; it is not ranked.
    - `format`: such as "W4A16 g32", the others behind ", "; `bits_body`: bits of a quantized
      weight, `bits_file`: all bytes over all weights. `gib`, `mib`: of `bytes`.
    - `ppl_ratio`: PPL over the base's, paired. `kld`: mean; `kld_median` … `kld_p999`: percentiles,
      each with an interval where enough targets lie beyond it; `kld_max`: of one target.
    - `top1`: share of targets where model and base find the same token the likeliest; `flips`: 1 -
      that; `acceptance`: of the model's drafts by the base; `lost`: base right and model wrong;
      `gained`: the other way around; `confident_flips`: of the targets where the base was sure.
    - `noise`: KLD of the base against itself, where that was measured; a smaller KLD is noise.
    - `ranks`: the first and the last that it may have, None of the base's; `verdicts`: how it stands
      beside the base (`results.statistics.verdict`).
    """

    id: str
    model: int
    name: str
    source: str
    folder: str
    is_base: bool
    format: str
    bytes: int | None
    gib: float | None
    mib: float | None
    parameters: int | None
    bits_body: float | None
    bits_file: float | None
    ppl: Measured
    nll: Measured
    bits_per_byte: Measured | None
    ppl_ratio: Measured | None
    kld: Measured | None
    kld_median: Measured | None
    kld_p90: Measured | None
    kld_p99: Measured | None
    kld_p999: Measured | None
    kld_max: float | None
    top1: Measured | None
    flips: Measured | None
    acceptance: Measured | None
    confident_flips: Measured | None
    lost: Measured | None
    gained: Measured | None
    noise: Measured | None
    ranks: tuple[int, int] | None
    verdicts: list[dict[str, Any]]
    provenance: Provenance


class Base(TypedDict):
    """The base, as the runs against it know it. `run`: id of a run of the very same files in the
    section, else None. `dtype`: what it was computed in."""

    name: str
    source: str
    kind: str
    sha256: str
    run: str | None
    bytes: int | None
    gib: float | None
    mib: float | None
    bits_body: float | None
    bits_file: float | None
    dtype: str | None
    ppl: Measured
    nll: Measured


class AttributionRow(TypedDict):
    """A layer, or what lies in none: the KLD of the base with each head's module of the model, None
    where there is no such module, or both models have it alike."""

    name: str
    cells: list[Measured | None]


class Attribution(TypedDict):
    """The KLD that each part of the model of `run` (an id) causes alone, `by` module, layer or kind.

    - `heads`: of the cells, kinds of modules. `whole`: the KLD of the whole model; `sum_share`: the
      sum of all cells as a share of it, None where that is 0.
    - `unfit`: names of tensors that tell that parts may not be added.
    """

    run: str
    by: Literal["module", "layer", "kind"]
    heads: list[str]
    rows: list[AttributionRow]
    whole: Measured
    sum_share: float | None
    unfit: list[str]


class Section(TypedDict):
    """Runs that may be compared: of one text, one protocol, the same targets, one base.

    - `title`: text, protocol, base, in a line. `runs`: best first, by `ranked_by`; base's runs in
      front.
    - `text`, `protocol`, `plan`: as the records have them, with their hashes; `*_words`: in a line;
      `text_name`: what a person calls the text.
    - `blocks` of `block_length` tokens are what matrices were resampled from, and the perplexities,
      `kld` and `top1` of the runs and the base, the same for all; all else has the blocks of the run's
      own record. `interval_words`: that in a sentence.
    - `tail`, `charts`, `frontiers`, `matrices` and `worst` leave out runs of the base itself.
    - `worst`: the largest KLD of any run first.
    - `tasks`: the record's section of each run that answered lm-evaluation-harness's tasks, by its id.
    - `attributions`: of the runs that `scoremode attribute` made.
    - `differing`: what else differs between the runs (`field`, and in `values` value → names of
      runs).
    """

    id: str
    title: str
    text: dict[str, Any]
    text_name: str
    text_words: str
    protocol: dict[str, Any]
    protocol_words: str
    plan: dict[str, Any]
    base: Base | None
    ranked_by: Literal["kld", "ppl"]
    blocks: int
    block_length: int
    interval_words: str
    runs: list[Run]
    frontiers: list[Frontier]
    tail: list[Tail]
    charts: list[Chart]
    matrices: list[Matrix]
    worst: list[WorstTarget]
    tasks: dict[str, dict[str, Any]]
    attributions: list[Attribution]
    differing: list[dict[str, Any]]
    notes: list[str]


class ReportData(TypedDict):
    """The whole report. `finished`: of the newest run. `made_with`: this program's version;
    `command`: set by the command that writes the page."""

    schema: str
    schema_version: int
    title: str
    finished: str | None
    made_with: str
    sections: list[Section]
    command: NotRequired[list[str]]
