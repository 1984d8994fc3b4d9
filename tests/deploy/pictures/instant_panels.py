"""Panels that show one moment: numbers, bars beside each other, tables."""

from collections.abc import Sequence
from datetime import UTC

from tests.deploy.dashboards import Asked, Values, by_hour
from tests.deploy.pictures.canvas import GREYED, Canvas
from tests.deploy.pictures.formatting import ago

Answers = Sequence[tuple[Asked, Values]]


def stat(canvas: Canvas, answers: Answers) -> None:
    found = [(asked, values[-1][1]) for asked, answer in answers for values in answer.values()]
    asked, value = found[0] if found else (answers[0][0], None)
    if value is not None and canvas.unit() == "dateTimeFromNow":
        text = ago(asked.to_s - value / 1000)
    else:
        text = canvas.written(value)
    colour = GREYED if value is None or value != value else canvas.threshold(value)  # noqa: PLR0124
    size = min(24, 0.95 * canvas.w / len(text))
    canvas.text(
        canvas.w / 2, canvas.h / 2 + 10, text, size=size, color=colour, ha="center", weight="bold"
    )


def bar_gauge(canvas: Canvas, answers: Answers) -> None:
    bars = [
        (asked.name(labels), values[-1][1])
        for asked, answer in answers
        for labels, values in answer.items()
    ]
    longest = canvas.defaults.get("max", max(value for _, value in bars))
    left = 16 + 7.4 * max(len(name) for name, _ in bars)
    axes = canvas.axes(left=left, right=78, bottom=12, top=34)
    for place, (name, value) in enumerate(bars):
        colour = canvas.threshold(value)
        axes.barh(place, longest, color="#EDEEF0", height=0.7)
        axes.barh(place, value, color=colour, height=0.7)
        axes.text(-longest * 0.015, place, name, ha="right", va="center", fontsize=8.5)
        said = f" {canvas.written(value)}"
        axes.text(longest, place, said, va="center", fontsize=11, color=colour, weight="bold")
    axes.set_xlim(0, longest)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_axis_off()


def columns(canvas: Canvas, answers: Answers) -> None:
    ((_, answer),) = answers
    (values,) = answer.values()
    bars = by_hour(canvas.panel, values, UTC)
    axes = canvas.axes(left=44, right=10, bottom=24, top=32)
    axes.bar([*bars], [*bars.values()], color=canvas.threshold(0))
    axes.grid(axis="y", color="#E4E5E8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def table(canvas: Canvas, answers: Answers) -> None:
    (organize,) = [
        each["options"] for each in canvas.panel["transformations"] if each["id"] == "organize"
    ]
    names = organize["renameByName"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for letter, (_, answer) in zip("ABCDEFGH", answers, strict=False):
        for labels, values in answer.items():
            row = rows.setdefault(tuple(labels[-1:][0]), dict(labels))
            percent = names.get(f"Value #{letter}") == "Watched to the end"
            value = values[-1][1]
            row[f"Value #{letter}"] = f"{100 * value:.0f}%" if percent else f"{value:,.0f}"
    step = (canvas.w - 20) / len(names)
    for place, (field, heading) in enumerate(names.items()):
        canvas.text(12 + place * step, 44, heading, weight="bold", color=GREYED, size=6.8)
        for line, row in enumerate(rows.values()):
            canvas.text(12 + place * step, 72 + 26 * line, row.get(field, "-"), size=9)
