"""Write the dashboards' JSON and their tables in the documents, after an edit of their code."""

from deploy.grafana.document import DOCUMENT, renewed
from deploy.grafana.files import DASHBOARDS, made, text

for name, file in DASHBOARDS.items():
    file.write_text(text(name), encoding="utf-8")
boards = {name: made(name) for name in DASHBOARDS}
DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8"), boards), encoding="utf-8")
