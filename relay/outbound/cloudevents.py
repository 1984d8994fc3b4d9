"""CloudEvents 1.0 in binary mode: an event's attributes, and how HTTP carries them.

outgoing-http.md, section 2; the body is unchanged, so its type is the request's content-type.
"""

import re
from datetime import datetime
from urllib.parse import quote

from relay.core.event import Event, rfc3339

_AS_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_NEEDS_NOTHING = re.compile(f"[{re.escape(_AS_IS)}]*")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def header_value(text: str) -> str:
    """Percent-encode what a header cannot hold, and `%` itself, so that unquoting gives `text`.

    HTTP Protocol Binding for CloudEvents 1.0.2, section 3.1.3.2.
    """
    return text if _NEEDS_NOTHING.fullmatch(text) else quote(text, safe=_AS_IS)


def attributes(event: Event) -> dict[str, str]:
    """Return the context attributes; `time` is the time of receipt if createdAt is no time."""
    named = {
        "specversion": "1.0",
        "id": event.id,
        # A URI reference by the specification; a plain name is one.
        "source": quote(event.source, safe=""),
        "type": event.kind,
        "time": event.created_at if _is_time(event.created_at) else rfc3339(event.received_ms),
        "subject": event.video_id(),
        # An extension; a boolean is written as its canonical text.
        "reconstructed": "true" if event.reconstructed else None,
    }
    return {name: value for name, value in named.items() if value}


def headers(event: Event) -> list[tuple[str, str]]:
    """Return the `ce-` headers of HTTP's binary mode."""
    return [(f"ce-{name}", header_value(value)) for name, value in attributes(event).items()]


def _is_time(text: str | None) -> bool:
    if text is None or _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True
