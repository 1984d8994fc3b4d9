"""Grafana's dashboards as code: `python -m deploy.grafana` writes dashboards/*.json.

The JSON is shipped and never edited by hand. Dashboards are tables of plain dicts: a typed
library takes a call per option, and knows less than Grafana. The builder refuses unknown options
too, and tests hold the rules of Grafana's linter.
"""
