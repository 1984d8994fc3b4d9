"""Write the dashboards' JSON."""

from deploy.grafana.boards import DASHBOARDS, DOCUMENT, text

document = DOCUMENT.read_text(encoding="utf-8")
for name, file in DASHBOARDS.items():
    file.write_text(text(name, document), encoding="utf-8")
