"""How a value looks: its colour, the words in its place, and from where on it is good or bad."""

from collections.abc import Mapping

from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models import dashboard as models

# Okabe and Ito's colours, which also those tell apart who see red and green alike.
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
YELLOW = "#F0E442"
PURPLE = "#CC79A7"
GREY = "#8E8E8E"

GOOD = GREEN
DOUBTFUL = ORANGE
BAD = VERMILION
PLAIN = SKY
"""Of a number that is neither good nor bad; readable on Grafana's dark and light background."""

PALETTE = "palette-colorblind"
"""The same colours for series whose names nobody knows here; Grafana has it from 13 on."""

NOTHING = "-"


def steps(base: str, *others: tuple[float, str]) -> ThresholdsConfig:
    """Make colours that begin at a value; the first holds below all others."""
    marks = [models.Threshold(None, base), *(models.Threshold(*each) for each in others)]
    return ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(marks)


def fixed(colour: str) -> FieldColor:
    return FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(colour)


def by_threshold() -> FieldColor:
    return FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def painted(colour: str) -> list[models.DynamicConfigValue]:
    return [models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})]


def without_numbers() -> list[models.ValueMapping]:
    """Show a share or a quantile of nothing as nothing."""
    options = models.DashboardSpecialValueMapOptions(
        match=models.SpecialValueMatch.NULL_AND_NAN,
        result=models.ValueMappingResult(text=NOTHING, color=GREY, index=0),
    )
    return [models.SpecialValueMap(options)]


def said(words: Mapping[int, tuple[str, str]]) -> list[models.ValueMapping]:
    """Show words, each with a colour, in place of numbers."""
    results = {
        str(number): models.ValueMappingResult(text=text, color=colour, index=index)
        for index, (number, (text, colour)) in enumerate(words.items())
    }
    return [models.ValueMap(results)]
