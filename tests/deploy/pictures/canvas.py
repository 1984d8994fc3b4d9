"""One panel's part of the picture, in pixels, and the formatting of its values."""

import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.deploy.pictures.formatting import written

INK = "#24292E"
PAPER = "#F4F5F5"
GREYED = "#6B7075"

PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#D55E00", "#000000")
"""Grafana's colour-blind palette on a light background, for series without a colour."""

_TITLE = 26


class Canvas:
    """Draws at pixels from the panel's top left, below its title."""

    def __init__(
        self,
        figure: Figure,
        panel: dict[str, Any],
        place: tuple[float, float, float, float],
        width: float,
        height: float,
    ) -> None:
        self._figure = figure
        self.panel = panel
        self._x, self._y, self.w, self.h = place
        self._all = (width, height)
        self.defaults: dict[str, Any] = panel["fieldConfig"]["defaults"]
        self.text(8, 14, panel["title"], weight="bold", size=8.5)

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        style = {"color": INK, "va": "center", **style}
        width, height = self._all
        self._figure.text((self._x + x) / width, 1 - (self._y + y) / height, text, **style)

    def axes(self, *, left: float, right: float, bottom: float, top: float = _TITLE) -> Axes:
        """Make axes with these margins, in pixels."""
        width, height = self._all
        axes = self._figure.add_axes(
            (
                (self._x + left) / width,
                1 - (self._y + self.h - bottom) / height,
                (self.w - left - right) / width,
                (self.h - top - bottom) / height,
            )
        )
        axes.tick_params(length=0, labelsize=7, colors=GREYED)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes

    def written(self, value: float | None) -> str:
        """Write a value with its unit, or the word that stands for it."""
        if value is None or value != value:  # noqa: PLR0124  not a number
            return str(self.defaults.get("noValue", "-"))
        for mapping in self.defaults.get("mappings", []):
            found = mapping["options"].get(f"{value:g}") if mapping["type"] == "value" else None
            if found:
                return str(found["text"])
        return written(value, self.unit(), self.defaults.get("decimals"))

    def unit(self) -> str:
        return str(self.defaults["unit"])

    def threshold(self, value: float) -> str:
        """The colour of a value that is coloured by the steps it has passed."""
        if self.defaults["color"]["mode"] == "fixed":
            return str(self.defaults["color"]["fixedColor"])
        steps = self.defaults["thresholds"]["steps"]
        passed = [step for step in steps if step["value"] is None or value >= step["value"]]
        return str(passed[-1]["color"])

    def colour(self, name: str, place: int) -> str:
        """The colour of a series: its own, or the palette's next."""
        own = PALETTE[place % len(PALETTE)]
        for override in self.panel["fieldConfig"]["overrides"]:
            wanted = override["matcher"]["options"]
            is_regexp = override["matcher"]["id"] == "byRegexp"
            fits = re.fullmatch(wanted, name) if is_regexp else wanted == name
            colours = [each for each in override["properties"] if each["id"] == "color"]
            if fits and colours:
                own = colours[0]["value"]["fixedColor"]
        return str(own)
