"""`relay probe`: a container's health check."""

from pathlib import Path

import click
import httpx

from relay.cli.client import anonymous
from relay.cli.parameters import config_option
from relay.cli.printing import Output, printing
from relay.cli.target import Target, url_option

TIMEOUT_S = 5.0


@click.command()
@config_option
@url_option
@printing
def probe(*, path: Path | None, url: httpx.URL | None) -> Output:
    """Check that the relay's /healthz responds; needs no token.

    Exits 0 if it does within 5 s, else 1. The state of store and sinks does not count, because an
    orchestrator restarts the relay on a failed check, which would repair neither.
    """
    target = Target(path=path, url=url, token=None)
    with anonymous(target, timeout_s=TIMEOUT_S) as client:
        health = client.health()
    return Output(health, [health["status"]])
