"""Schemas of the Prometheus Operator's objects (0.91), reduced to the keys in use.

No package has the operator's own schemas without much else. The rules inside a PrometheusRule are
those of rules.yml, which Prometheus checks.
https://prometheus-operator.dev/docs/api-reference/api/
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(y|w|d|h|ms|m|s))+$"}
LABEL: Schema = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}


def closed(*required: str, **properties: Schema) -> Schema:
    """An object with these keys and no others."""
    own = {"properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "object", **own}


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _object(kind: str, spec: Schema) -> Schema:
    return closed(
        *("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=closed("name", name=TEXT, namespace=TEXT, labels=TEXTS),
        spec=spec,
    )


_RELABELING = closed("targetLabel", sourceLabels=several(LABEL), separator=TEXT, targetLabel=LABEL)
_ENDPOINT = closed(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings=several(_RELABELING),
)
_MONITOR = closed(
    *("selector", "podMetricsEndpoints"),
    selector=closed("matchLabels", matchLabels=TEXTS),
    jobLabel=TEXT,
    podMetricsEndpoints=several(_ENDPOINT),
)

SCHEMAS = {
    "PodMonitor": _object("PodMonitor", _MONITOR),
    "PrometheusRule": _object("PrometheusRule", closed("groups", groups=several({}))),
}
