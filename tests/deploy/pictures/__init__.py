"""Draws the dashboards as pictures for the documents: `python -m tests.deploy.pictures`.

Not Grafana, but what Prometheus answers to every panel's queries, in the panels' places, with their
titles, units, colours and legends. Needs `matplotlib`, which nothing else here does.
"""
