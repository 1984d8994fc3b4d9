"""Lines about a rotation, from the admin API's view of it."""

from collections.abc import Iterator
from typing import Any

from relay.cli.output import moment, pairs
from relay.core.units import number


def finished(source: str, view: dict[str, Any]) -> Iterator[str]:
    """Yield the end of a rotation, with the kept requests by outcome."""
    yield f"{source}: finished"
    yield from pairs(counts(view), indent="  ")
    if view["waiting"]:
        yield (
            f"Unverified requests match no secret of {source}: they are forged, or signed with a "
            f"secret that is not in the config. They are kept until {moment(view['expires_ms'])}; "
            "if a secret is wrong, correct it and run finish again."
        )


def counts(view: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the numbers of kept requests by outcome."""
    for name in ("kept", "verified", "duplicates"):
        yield name, view[name]
    yield "unverified", view["waiting"]
    if view["dropped"]:
        yield "dropped", f"{number(view['dropped'])}, over a limit"
