"""Makes base/prometheus-rule.yaml from deploy/prometheus/rules.yml.

Run it after every edit of the rules: `python deploy/kubernetes/prometheus_rule.py`.
"""

from pathlib import Path
from textwrap import indent

DEPLOY = Path(__file__).parent.parent
SOURCE = DEPLOY / "prometheus" / "rules.yml"
TARGET = DEPLOY / "kubernetes" / "base" / "prometheus-rule.yaml"

HEAD = """\
# Made by deploy/kubernetes/prometheus_rule.py of deploy/prometheus/rules.yml: edit that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: relay
  labels:
    app.kubernetes.io/name: relay
spec:
"""


def manifest(rules: str) -> str:
    """The object with the groups of a plain rule file, unchanged but indented."""
    return HEAD + indent(rules, "  ")


if __name__ == "__main__":
    TARGET.write_text(manifest(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
