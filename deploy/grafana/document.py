"""The tables of docs/dashboards.md: every panel with what it says, as Grafana shows it too."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "dashboards.md"


def renewed(document: str, boards: Mapping[str, dict[str, Any]]) -> str:
    """Put the table of each dashboard between the two comments that bear its name."""
    for name, board in boards.items():
        between = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)"
        table = f"\n{_table(board)}\n"
        document = re.sub(between, table.replace("\\", r"\\"), document, flags=re.DOTALL)
    return document


def _table(board: dict[str, Any]) -> str:
    lines = ["| panel | what it says |", "|---|---|"]
    for panel in board["panels"]:
        if panel["type"] == "row":
            lines.append(f"| **{panel['title']}** | |")
        else:
            lines.append(f"| {panel['title']} | {panel['description']} |")
    return "\n".join(lines) + "\n"
