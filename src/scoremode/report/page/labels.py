"""Where names stand beside their points, so that no two lie on each other."""

from collections.abc import Sequence

__all__ = ["PLACES", "placed"]

# Tried in this order: what a reader finds first.
PLACES = ("right", "left", "top", "bottom")
_LEFT_FIRST = ("left", "top", "right", "bottom")
_LETTER = 6.2
_HEIGHT = 13.0
_GAP = 8.0
_DOT = 5.0
Box = tuple[float, float, float, float]


def placed(
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    width: float,
    height: float,
    left_first: Sequence[bool],
) -> list[str]:
    """For each point of a chart, in pixels: one of PLACES for its name, or `none` for want of room.

    The points before others have the first choice. `left_first`: of which points the right side is
    taken, as a frontier's steps do.
    """
    dots = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in points]
    taken: list[Box] = []
    result = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        others = [*taken, *dots[:i], *dots[i + 1 :]]
        for place in _LEFT_FIRST if left_first[i] else PLACES:
            box = _box(place, x, y, _LETTER * len(name))
            inside = box[0] >= 0 and box[2] <= width and box[1] >= -_HEIGHT and box[3] <= height
            if inside and not any(_overlap(box, other) for other in others):
                taken.append(box)
                result.append(place)
                break
        else:
            result.append("none")
    return result


def _box(place: str, x: float, y: float, length: float) -> Box:
    middle = _HEIGHT / 2
    if place == "right":
        return x + _GAP, y - middle, x + _GAP + length, y + middle
    if place == "left":
        return x - _GAP - length, y - middle, x - _GAP, y + middle
    top = y - _GAP - _HEIGHT if place == "top" else y + _GAP
    return x - length / 2, top, x + length / 2, top + _HEIGHT


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
