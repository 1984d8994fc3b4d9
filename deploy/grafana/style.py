"""Colours, thresholds and the words that replace numbers."""

from typing import Any

Json = dict[str, Any]

# Okabe and Ito's colours, distinguishable with red-green colour blindness.
BLUE = "#0072B2"
SKY = PLAIN = "#56B4E9"
GREEN = GOOD = "#009E73"
ORANGE = DOUBTFUL = "#E69F00"
VERMILION = BAD = "#D55E00"
YELLOW = "#F0E442"
PURPLE = "#CC79A7"
GREY = "#8E8E8E"

PALETTE = "palette-colorblind"
"""Grafana's version of these colours, for series without a colour of their own; since 13."""

NOTHING = "-"
NONE_YET = "none yet"


def fixed(colour: str) -> Json:
    return {"mode": "fixed", "fixedColor": colour}


def steps(base: str, *others: tuple[float, str]) -> Json:
    """Colours that begin at a value; `base` holds below all others."""
    marks = [(None, base), *others]
    colours = [{"value": value, "color": colour} for value, colour in marks]
    return {"mode": "absolute", "steps": colours}


def words(*words: tuple[int, str, str]) -> list[Json]:
    """Show words, each with a colour, in place of numbers."""
    options = {
        str(number): {"text": text, "color": colour, "index": index}
        for index, (number, text, colour) in enumerate(words)
    }
    return [{"type": "value", "options": options}]


YES_NO = words((1, "yes", GOOD), (0, "no", BAD))
