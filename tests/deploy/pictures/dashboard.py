"""A dashboard's picture: every panel in its place, drawn by its kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.deploy import dashboards
from tests.deploy.pictures import instant_panels, range_panels
from tests.deploy.pictures.canvas import PAPER, Canvas
from tests.deploy.prometheus import Prometheus

_WIDTH = 1280
_GAP = 5
_COLUMN = (_WIDTH - _GAP) / 24
_ROW = 36
_HEAD = 46
_DPI = 100

_KINDS = {
    "stat": instant_panels.stat,
    "bargauge": instant_panels.bar_gauge,
    "barchart": instant_panels.columns,
    "table": instant_panels.table,
    "timeseries": range_panels.series,
    "heatmap": range_panels.heat,
    "state-timeline": range_panels.states,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Pixels from the picture's top left."""

    x: float
    y: float
    w: float
    h: float


def draw(board: dict[str, Any], file: Path, *, server: Prometheus, from_s: int, to_s: int) -> None:
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 8, "svg.fonttype": "none"})
    bottom = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in board["panels"])
    height = _HEAD + bottom * _ROW
    figure = Figure(figsize=(_WIDTH / _DPI, height / _DPI), dpi=_DPI, facecolor=PAPER)
    figure.text(10 / _WIDTH, 1 - 16 / height, board["title"], size=14, weight="bold", va="center")
    figure.text(10 / _WIDTH, 1 - 35 / height, board["description"], color="#555555", va="center")
    for panel in board["panels"]:
        place = _place(panel["gridPos"])
        if panel["type"] == "row":
            where = (place.x / _WIDTH, 1 - (place.y + place.h / 2) / height)
            figure.text(*where, f"▾ {panel['title']}", size=10, weight="bold", va="center")
            continue
        _frame(figure, place, height)
        asked = dashboards.asks(panel, from_s=from_s, to_s=to_s, points=int(place.w))
        answers = [(each, each.answer(server)) for each in asked]
        canvas = Canvas(figure, panel, (place.x, place.y, place.w, place.h), _WIDTH, height)
        _KINDS[panel["type"]](canvas, answers)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file)
    # A palette is a third of the size; k-means keeps the colours of large areas as they are.
    flat = Image.open(file).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=2)
    drawn = PngInfo()
    drawn.add_text("panels", "; ".join(each["title"] for each in dashboards.panels(board)))
    flat.save(file, optimize=True, pnginfo=drawn)


def _place(grid: dict[str, int]) -> Place:
    return Place(
        grid["x"] * _COLUMN + _GAP,
        _HEAD + grid["y"] * _ROW + _GAP / 2,
        grid["w"] * _COLUMN - _GAP,
        grid["h"] * _ROW - _GAP,
    )


def _frame(figure: Figure, place: Place, height: float) -> None:
    box = FancyBboxPatch(
        (place.x / _WIDTH, 1 - (place.y + place.h) / height),
        place.w / _WIDTH,
        place.h / height,
        boxstyle="square,pad=0",
        transform=figure.transFigure,
        facecolor="white",
        edgecolor="#D5D7DB",
        linewidth=0.8,
        zorder=-1,
    )
    figure.add_artist(box)
