"""A line chart as a self-contained SVG: one line a series over named places.

Owns the drawing. Commands that measure call it; it needs no library and no network to be looked at.
"""

from collections.abc import Sequence
from html import escape

import attrs

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 40, 44  # margins
COLOURS = ("#475569", "#c2410c", "#1d4ed8", "#15803d", "#a21caf", "#b45309", "#0e7490", "#be123c")
NUM_TICKS = 5


@attrs.frozen
class Line:
    name: str
    values: Sequence[float]


def line_chart(title: str, places: Sequence[str], lines: Sequence[Line]) -> str:
    """`places` name the positions along x; each line has one value for each of them, 0 or more."""
    most = max([value for line in lines for value in line.values], default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_axes(places, most),
    ]
    for index, line in enumerate(lines):
        parts += _drawn(line, COLOURS[index % len(COLOURS)], num_places=len(places), most=most, row=index)
    return "\n".join([*parts, "</svg>", ""])


def _axes(places: Sequence[str], most: float) -> list[str]:
    end = WIDTH - RIGHT
    parts = []
    for tick in range(NUM_TICKS):
        share = tick / (NUM_TICKS - 1)
        y = _y(share)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{end}" y2="{y}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{most * share:.4g}</text>')
    for index, place in enumerate(places):
        x = _x(index, len(places))
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{escape(place)}</text>')
    return parts


def _drawn(line: Line, colour: str, *, num_places: int, most: float, row: int) -> list[str]:
    points = [(_x(index, num_places), _y(value / most)) for index, value in enumerate(line.values)]
    path = " ".join(f"{x},{y}" for x, y in points)
    dots = [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points]
    at = TOP + 8 + 18 * row
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *dots,
        f'<line x1="{WIDTH - RIGHT + 12}" y1="{at - 4}" x2="{WIDTH - RIGHT + 32}" y2="{at - 4}" stroke="{colour}" '
        'stroke-width="2"/>',
        f'<text x="{WIDTH - RIGHT + 38}" y="{at}">{escape(line.name)}</text>',
    ]


def _x(index: int, num_places: int) -> float:
    return round(LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / num_places, 1)


def _y(share: float) -> float:
    return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)
