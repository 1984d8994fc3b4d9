"""The dashboards' files and their JSON, with the descriptions from docs/dashboards.md."""

import json
import re
from pathlib import Path

from deploy.grafana import engagement, relay
from deploy.grafana.style import Json

_FOLDER = Path(__file__).parent / "dashboards"
_BOARDS = {"engagement": engagement.BOARD, "relay": relay.BOARD}

DASHBOARDS = {name: _FOLDER / f"{name}.json" for name in _BOARDS}
DOCUMENT = Path(__file__).parents[2] / "docs" / "dashboards.md"


def text(name: str, document: str) -> str:
    """The content of a dashboard's file."""
    board = _BOARDS[name]
    panels = [*map(_described, board["panels"], _table(name, document))]
    return json.dumps(board | {"panels": panels}, indent=2, ensure_ascii=False) + "\n"


def _table(name: str, document: str) -> list[tuple[str, str]]:
    """Title and description of each panel and row, between the comments that bear its name."""
    between = document.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [*re.findall(r"^\| (.+?) \| (.*?) ?\|$", between, re.MULTILINE)][1:]
    titles = [_heading(panel) for panel in _BOARDS[name]["panels"]]
    if [title for title, _ in lines] != titles:
        raise ValueError(f"{DOCUMENT.name}: the table of {name} must have these rows: {titles}")
    return lines


def _heading(panel: Json) -> str:
    return f"**{panel['title']}**" if panel["type"] == "row" else panel["title"]


def _described(panel: Json, line: tuple[str, str]) -> Json:
    return panel if panel["type"] == "row" else panel | {"description": line[1]}
