"""No two names lie on each other, on a point, or outside."""

import numpy as np

from scoremode.report.page.labels import _DOT, PLACES, _box, _overlap, placed


def test_names_have_room_of_their_own():
    random = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in random.uniform(0, 1, (25, 2)) * [430, 265]]
    names = [f"Q{i}_K_M" for i in range(25)]
    places = placed(points, names, 430, 265, [False] * 25)
    boxes = [
        (_box(place, x, y, 6.2 * len(name)), i)
        for i, (place, (x, y), name) in enumerate(zip(places, points, names, strict=True))
        if place != "none"
    ]
    assert len(boxes) > 15
    for n, (one, i) in enumerate(boxes):
        assert one[0] >= 0 and one[2] <= 430
        assert not any(_overlap(one, other) for other, _ in boxes[n + 1 :])
        for j, (x, y) in enumerate(points):
            assert i == j or not _overlap(one, (x - _DOT, y - _DOT, x + _DOT, y + _DOT))


def test_the_first_choice_is_kept_where_there_is_room():
    assert placed([(100, 100)], ["a"], 430, 265, [False]) == [PLACES[0]]
    assert placed([(100, 100)], ["a"], 430, 265, [True]) == ["left"]
    assert placed([(425, 100)], ["name"], 430, 265, [False]) == ["left"]
    assert placed([(5, 100)] * 2, ["x" * 90] * 2, 430, 265, [False] * 2) == ["none"] * 2
