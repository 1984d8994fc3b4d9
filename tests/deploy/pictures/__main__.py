"""Draw both dashboards from the scripted day and the fortnight around it into docs/images/."""

import tempfile
from pathlib import Path

from tests.deploy import dashboards, fortnight, tsdb
from tests.deploy.pictures.dashboard import draw
from tests.deploy.prometheus import Prometheus

IMAGES = Path(__file__).parents[3] / "docs" / "images"
with tempfile.TemporaryDirectory() as place:
    tsdb.write(Path(place) / "day")
    with Prometheus(data=Path(place) / "day") as day:
        fortnight.write(Path(place) / "all", day)
    with Prometheus(data=Path(place) / "all") as server:
        for name, (from_s, to_s) in fortnight.SHOWN.items():
            board = dashboards.read(name)
            draw(board, IMAGES / f"{name}.png", server=server, from_s=from_s, to_s=to_s)
