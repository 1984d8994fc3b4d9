"""Grafana's dashboards as code: `python -m deploy.grafana` writes dashboards/*.json.

The JSON is shipped and never edited by hand.
"""
