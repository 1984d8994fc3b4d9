"""What of the Prometheus Operator's objects is used here, after the schemas of its own (0.91).

No package has those schemas without much else, so these name the keys in use, and no other passes.
https://prometheus-operator.dev/docs/api-reference/api/
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(y|w|d|h|ms|m|s))+$"}
LABEL: Schema = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    """An object of these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _object(kind: str, spec: Schema) -> Schema:
    metadata = closed({"name": TEXT, "namespace": TEXT, "labels": TEXTS}, "name")
    return closed(
        {
            "apiVersion": {"const": "monitoring.coreos.com/v1"},
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": spec,
        },
        *("apiVersion", "kind", "metadata", "spec"),
    )


_RELABELING = closed(
    {"sourceLabels": several(LABEL), "separator": TEXT, "targetLabel": LABEL}, "targetLabel"
)
_ENDPOINT = closed(
    {
        "port": TEXT,
        "path": {"type": "string", "pattern": "^/"},
        "interval": DURATION,
        "scrapeTimeout": DURATION,
        "relabelings": several(_RELABELING),
    },
    "port",
)
_MONITOR = closed(
    {
        "selector": closed({"matchLabels": TEXTS}, "matchLabels"),
        "jobLabel": TEXT,
        "podMetricsEndpoints": several(_ENDPOINT),
    },
    *("selector", "podMetricsEndpoints"),
)
_RECORDING = closed({"record": TEXT, "expr": TEXT, "labels": TEXTS}, "record", "expr")
_ALERT = closed(
    {
        "alert": TEXT,
        "expr": TEXT,
        "for": DURATION,
        "keep_firing_for": DURATION,
        "labels": TEXTS,
        "annotations": TEXTS,
    },
    *("alert", "expr"),
)
_GROUP = closed(
    {
        "name": TEXT,
        "interval": DURATION,
        "limit": {"type": "integer"},
        "labels": TEXTS,
        "rules": several({"anyOf": [_RECORDING, _ALERT]}),
    },
    *("name", "rules"),
)

SCHEMAS = {
    "PodMonitor": _object("PodMonitor", _MONITOR),
    "PrometheusRule": _object("PrometheusRule", closed({"groups": several(_GROUP)}, "groups")),
}
