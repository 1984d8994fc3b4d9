"""Where the dashboards' JSON lies, and what has to stand in it."""

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import engagement, looks, operations

_FOLDER = Path(__file__).parent / "dashboards"

DASHBOARDS = {name: _FOLDER / f"{name}.json" for name in ("engagement", "relay")}
_BUILD = {"engagement": engagement.build, "relay": operations.build}


def made(name: str) -> dict[str, Any]:
    """Build one anew, as plain JSON."""
    board = _BUILD[name]().build()
    for number, panel in enumerate(board.panels or [], start=1):
        panel.id_val = number
    plain: dict[str, Any] = json.loads(json.dumps(board, cls=JSONEncoder))
    _add_what_the_library_does_not_know(plain)
    return plain


def _add_what_the_library_does_not_know(plain: dict[str, Any]) -> None:
    """It is of Grafana 11.6, and has of annotations what all data sources have."""
    for annotation in plain["annotations"].get("list", []):
        annotation.update(operations.WORDS_OF_ANNOTATION)
    for panel in plain["panels"]:
        if panel["type"] == "timeseries":
            panel["fieldConfig"]["defaults"]["color"] = {"mode": looks.PALETTE}


def text(name: str) -> str:
    """Build one anew, as the file of its name must hold it."""
    return json.dumps(made(name), indent=2, ensure_ascii=False) + "\n"
