"""Panels that show values over time."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tests.deploy.dashboards import Asked, Values
from tests.deploy.pictures.canvas import GREYED, Canvas

Answers = Sequence[tuple[Asked, Values]]
Line = tuple[str, str, list[tuple[float, float]]]
"""Name, colour, and the values with their times."""

_LEGEND_ROW = 15


def series(canvas: Canvas, answers: Answers) -> None:
    lines = _lines(canvas, answers)
    bottom = 26 + _LEGEND_ROW * (1 + math.ceil(len(lines) / _across(canvas)))
    axes = canvas.axes(left=56, right=12, bottom=bottom, top=30)
    custom = canvas.defaults["custom"]
    if custom["drawStyle"] == "bars":
        _bars(axes, lines, answers[0][0].step_s, stacked=custom["stacking"]["mode"] == "normal")
    else:
        for _, colour, values in lines:
            times, heights = zip(*values, strict=True)
            axes.plot(times, heights, color=colour, linewidth=1.3)
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0), canvas.defaults.get("max", high))
    if canvas.defaults.get("decimals") == 0:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: canvas.written(value))
    axes.grid(axis="y", color="#E4E5E8", linewidth=0.6)
    axes.set_axisbelow(True)
    _clock(axes, answers[0][0])
    _legend(canvas, lines)


def heat(canvas: Canvas, answers: Answers) -> None:
    ((asked, answer),) = answers
    rows = sorted((float(dict(labels)["le"]), values) for labels, values in answer.items())
    axes = canvas.axes(left=56, right=12, bottom=26, top=30)
    times = [at_s for at_s, _ in rows[0][1]]
    below = [0.0] * len(times)
    cells = []
    for _, values in rows:
        cells.append([max(value - less, 0) for (_, value), less in zip(values, below, strict=True)])
        below = [value for _, value in values]
    shown = [[math.nan if cell == 0 else cell for cell in row] for row in cells]
    edges = [*times, times[-1] + asked.step_s]
    axes.pcolormesh(edges, range(len(rows) + 1), shown, cmap="viridis")
    axes.set_yticks([place + 1 for place in range(0, len(rows), 2)])
    axes.set_yticklabels([f"{bound:g} s" for bound, _ in rows[::2]])
    _clock(axes, asked)


def states(canvas: Canvas, answers: Answers) -> None:
    ((asked, answer),) = answers
    words = canvas.defaults["mappings"][0]["options"]
    names = sorted(asked.name(labels) for labels in answer)
    left = 16 + 6.6 * max(map(len, names))
    axes = canvas.axes(left=left, right=12, bottom=24, top=30)
    found = {asked.name(labels): values for labels, values in answer.items()}
    for place, name in enumerate(names):
        for begin_s, end_s, value in _runs(found[name], asked.step_s):
            word = words[f"{value:g}"]
            axes.barh(place, end_s - begin_s, left=begin_s, height=0.8, color=word["color"])
            if end_s - begin_s > (asked.to_s - asked.from_s) / 24:
                axes.text(begin_s, place, f" {word['text']}", va="center", color="white", size=7)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    _clock(axes, asked)


def _lines(canvas: Canvas, answers: Answers) -> list[Line]:
    named = sorted(
        (order, asked.name(labels), values)
        for order, (asked, answer) in enumerate(answers)
        for labels, values in answer.items()
    )
    return [
        (name, canvas.colour(name, place), values) for place, (_, name, values) in enumerate(named)
    ]


def _bars(axes: Axes, lines: list[Line], step_s: int, *, stacked: bool) -> None:
    floor: dict[float, float] = {}
    for _, colour, values in lines:
        times = [at_s for at_s, _ in values]
        heights = [value for _, value in values]
        below = [floor.get(at_s, 0.0) if stacked else 0.0 for at_s in times]
        axes.bar(times, heights, step_s * 0.85, below, align="edge", color=colour)
        for at_s, height in values:
            floor[at_s] = floor.get(at_s, 0.0) + height


def _legend(canvas: Canvas, lines: list[Line]) -> None:
    calculations = canvas.panel["options"]["legend"]["calcs"]
    across = _across(canvas)
    deep = math.ceil(len(lines) / across)
    width = (canvas.w - 16) / across
    top = canvas.h - 4 - _LEGEND_ROW * deep
    heads = {"lastNotNull": "last", "max": "max", "sum": "total"}
    for place, (name, colour, values) in enumerate(lines):
        column, row = divmod(place, deep)
        x, y = 10 + column * width, top + _LEGEND_ROW * (row + 0.5)
        canvas.text(x, y, "■", color=colour, size=8)
        canvas.text(x + 12, y, name, size=7)
        for back, how in enumerate(reversed(calculations)):
            right = x + width - 14 - 62 * back
            canvas.text(right, y, canvas.written(_calculated(how, values)), size=7, ha="right")
            if row == 0:
                canvas.text(
                    right, top - _LEGEND_ROW / 2, heads[how], size=6.5, ha="right", color=GREYED
                )


def _calculated(how: str, values: list[tuple[float, float]]) -> float | None:
    numbers = [value for _, value in values if math.isfinite(value)]
    if not numbers:
        return None
    match how:
        case "sum":
            return sum(numbers)
        case "max":
            return max(numbers)
    return numbers[-1]


def _across(canvas: Canvas) -> int:
    return 2 if canvas.w > 500 else 1


def _runs(values: list[tuple[float, float]], step_s: int) -> list[tuple[float, float, float]]:
    runs: list[tuple[float, float, float]] = []
    for at_s, value in values:
        if runs and runs[-1][2] == value and at_s - runs[-1][1] < step_s / 2:
            runs[-1] = (runs[-1][0], at_s + step_s, value)
        else:
            runs.append((at_s, at_s + step_s, value))
    return runs


def _clock(axes: Axes, asked: Asked) -> None:
    days = asked.to_s - asked.from_s > 2 * 86_400
    step_s = 86_400 if days else 10_800
    first = -(-asked.from_s // step_s) * step_s
    ticks = range(first, asked.to_s + 1, step_s)
    form = "%a %d" if days else "%H:%M"
    ticks = ticks[::2] if len(ticks) > 10 else ticks
    axes.set_xticks(ticks, [datetime.fromtimestamp(each, UTC).strftime(form) for each in ticks])
    axes.set_xlim(asked.from_s, asked.to_s + (asked.step_s if days else 0))
