"""Where the dashboards' JSON lies, and what has to stand in it."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import engagement, operations

_FOLDER = Path(__file__).parent / "dashboards"

DASHBOARDS = {name: _FOLDER / f"{name}.json" for name in ("engagement", "relay")}
_BUILD = {"engagement": engagement.build, "relay": operations.build}


def text(name: str) -> str:
    """Build one anew, as the file of its name must hold it."""
    board = _BUILD[name]().build()
    for number, panel in enumerate(board.panels or [], start=1):
        panel.id_val = number
    return json.dumps(board, cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"
