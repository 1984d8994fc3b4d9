"""Grafana's dashboards as code: `python -m deploy.grafana` writes dashboards/ anew.

Built with Grafana's own typed library, so that a panel has no option that Grafana does not know.
The JSON beside it is what is shipped; nobody edits it.
"""
