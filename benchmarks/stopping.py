"""Coverage of the interval that `--stop-when` ends a run by, on the scores of a finished run.

    python benchmarks/stopping.py RUN [--seeds 1000] [--rules RULE …]

RUN is a run of all windows, whose value is the truth. For every seed its windows are drawn again, the
rule is held against them at each look, by the very code that ends runs, and the interval of the look
that ends the run is held against the truth. `at a fixed window` is the interval after as many windows
as the rule usually took, without a look before: what stopping costs is the difference between the two.
"""

import argparse
from pathlib import Path

import numpy as np

from scoremode.results.folders.store import read_columns
from scoremode.results.statistics.windows import WindowSums, look_at, of_drawn, window_sums
from scoremode.text.stopping import looks_of, stop_rule


def drawn(sums: WindowSums, seed: int) -> WindowSums:
    order = np.random.default_rng([20_481, seed]).permutation(len(sums))
    columns = {name: column[order] for name, column in sums.columns.items()}
    return WindowSums(sums.place[order], sums.weight[order], columns)


def covered(sums: WindowSums, rule: str, seeds: int) -> tuple[float, float, list[int]]:
    """Shares of seeds whose interval holds the value of all windows, where the rule ends the run and at
    the median of these places; windows after which it ended."""
    n, name = len(sums), stop_rule(rule).metric
    truth = of_drawn(sums, n)[name].value
    inside, ends = 0, []
    for seed in range(seeds):
        order = drawn(sums, seed)
        for look in looks_of(n):
            found = look_at(order.first(look), n, rule)
            if found.met:
                break
        assert found.interval is not None
        # Of all windows it is the value itself, but for the order in which they are added.
        inside += look == n or found.interval[0] <= truth <= found.interval[1]
        ends.append(look)
    usual, fixed = int(np.median(ends)), 0
    for seed in range(seeds):
        interval = of_drawn(drawn(sums, seed).first(usual), n)[name].interval
        assert interval is not None
        fixed += usual == n or interval[0] <= truth <= interval[1]
    return inside / seeds, fixed / seeds, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument(
        "--rules",
        nargs="+",
        default=["ppl±5%", "ppl±3%", "ppl±2%", "kld±10%", "kld±5%", "kld±2%", "kld±1%"],
    )
    args = parser.parse_args()
    scores, extras = read_columns(args.run / "scores.parquet")
    sums = window_sums(scores, extras.get("weight"))
    print(f"{len(sums):,} windows, {args.seeds:,} seeds")
    print("| rule | windows, median | 5 % to 95 % | covered | at a fixed window |")
    print("|---|---:|---:|---:|---:|")
    for rule in args.rules:
        name = stop_rule(rule).metric
        if name == "kld" and "kld" not in sums.columns:
            continue
        inside, fixed, ends = covered(sums, rule, args.seeds)
        low, usual, high = np.percentile(ends, [5, 50, 95]).astype(int)
        cells = f"{rule}", f"{usual:,}", f"{low:,} to {high:,}", f"{inside:.1%}", f"{fixed:.1%}"
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
