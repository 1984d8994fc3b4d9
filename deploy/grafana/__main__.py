"""Write the dashboards' JSON; run it after every edit: `python -m deploy.grafana`."""

from deploy.grafana.files import DASHBOARDS, text

for name in DASHBOARDS:
    DASHBOARDS[name].write_text(text(name), encoding="utf-8")
