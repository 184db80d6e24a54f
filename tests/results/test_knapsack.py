"""The knapsack against all choices there are."""

from itertools import product

import numpy as np
import pytest

from scoremode.runs.recipe import Option, front_of


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_is_better(seed):
    rng = np.random.default_rng(seed)
    items = [
        [Option(int(rng.integers(1, 12)), float(rng.integers(0, 9)) / 8) for _ in range(count)]
        for count in rng.integers(1, 5, size=6)
    ]
    front = front_of(items)
    every = [
        (sum(o.size for o in choice), sum(o.cost for o in choice)) for choice in product(*items)
    ]
    assert (np.diff(front.sizes) > 0).all() and (np.diff(front.costs) < 0).all()
    for size in range(80):
        fitting = [cost for used, cost in every if used <= size]
        place = front.within(size)
        if not fitting:
            assert place is None
            continue
        assert place is not None and front.costs[place] == min(fitting)
        chosen = [items[i][n] for i, n in enumerate(front.choice(place))]
        assert sum(o.size for o in chosen) == front.sizes[place] <= size
        assert sum(o.cost for o in chosen) == front.costs[place]


def test_the_front_ends_with_the_cheapest_of_each():
    items = [[Option(1, 5.0), Option(2, 0.0), Option(3, 0.0)]] * 3
    front = front_of(items)
    assert front.sizes.tolist() == [3, 4, 5, 6] and front.choice(3) == [1, 1, 1]
    assert front.within(2) is None and front.within(1000) == 3


def test_many_items_of_few_sizes_are_quick():
    """A model of 32 layers of 7 linears in 4 formats."""
    rng = np.random.default_rng(0)
    shapes = [16, 4, 4, 16, 56, 56, 56]
    items = [
        [Option(shape * bits, float(rng.gamma(1) * 2.0**-bits)) for bits in (2, 4, 8, 16)]
        for _ in range(32)
        for shape in shapes
    ]
    front = front_of(items)
    place = front.within(32 * sum(shapes) * 5)
    assert place is not None and len(front.sizes) > 1000
