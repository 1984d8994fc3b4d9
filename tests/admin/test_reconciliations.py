"""Reconciliations by the API: what is refused, and a run that an operator ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import service
from tests.operator import ADMIN, Operator, operating
from tests.stub_server import DEADLINE_S, StubServer, until

RUNS = "/reconciliations"
HOUR_MS = 3_600_000


@contextlib.asynccontextmanager
async def working(folder: Path, tables: str = "") -> AsyncIterator[Operator]:
    settings = service.read(folder, tables=tables + ADMIN)
    async with service.serving(settings) as relay, operating(relay) as operator:
        yield operator


@pytest.fixture
async def asking(tmp_path: Path, destination: StubServer) -> AsyncIterator[Operator]:
    """An operator of a relay whose sender's API never answers."""
    destination.reply = lambda _: None
    api = f'[source.api]\nbase_url = "{destination.url("")}"\nkey = "a-key-of-the-tests"\n'
    async with working(tmp_path, api) as operator:
        yield operator


async def over(operator: Operator, number: int) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while (run := await operator.get(f"{RUNS}/{number}"))["state"] == "running":
            await asyncio.sleep(0.02)
    return run


async def test_a_source_without_an_api_cannot_be_reconciled(tmp_path: Path) -> None:
    async with working(tmp_path) as operator:
        refusal = await operator.post(RUNS, {}, status=409)
        assert refusal["detail"] == "No source of the config has [source.api]."
        refusal = await operator.post(RUNS, {"source": "main"}, status=409)
        assert refusal["detail"] == "Nothing to reconcile: source main has no [source.api]."
        refusal = await operator.post(RUNS, {"source": "nobody"}, status=422)
        assert refusal["detail"] == "There is no source nobody; there are: main."
        refusal = await operator.get(f"{RUNS}/7", status=404)
        assert refusal["detail"] == "There is no reconciliation 7."


@pytest.mark.parametrize("since_ms", [-1, -(1 << 63) - 1])
async def test_a_time_before_1970_is_refused(asking: Operator, since_ms: int) -> None:
    refusal = await asking.post(RUNS, {"since_ms": since_ms}, status=400)
    assert "since_ms" in refusal["detail"]


async def test_a_period_that_ends_before_it_begins_is_refused(asking: Operator) -> None:
    order = {"since_ms": 2 * HOUR_MS, "until_ms": HOUR_MS}
    refusal = await asking.post(RUNS, order, status=409)
    assert refusal["detail"] == "Nothing to reconcile: the period ends before it begins."
    assert (await asking.get(RUNS))["reconciliations"] == []


async def test_a_run_is_the_only_one_of_its_source_until_it_is_cancelled(
    asking: Operator, destination: StubServer
) -> None:
    order = {"since_ms": HOUR_MS, "until_ms": 2 * HOUR_MS}
    (run,) = (await asking.post(RUNS, order))["reconciliations"]
    refusal = await asking.post(RUNS, order, status=409)
    assert (
        refusal["detail"] == f"Nothing to reconcile: run {run['id']} of source main is under way."
    )
    await until(lambda: bool(destination.requests), what="a request to the API")
    await asking.post(f"{RUNS}/{run['id']}/cancel")
    assert (await over(asking, run["id"]))["state"] == "cancelled"
    assert (await asking.get(f"{RUNS}/{run['id']}"))["report"]["events"] == {}
    (again,) = (await asking.post(RUNS, order))["reconciliations"]
    assert again["id"] > run["id"]


async def test_a_run_that_is_over_cannot_be_cancelled(asking: Operator) -> None:
    (run,) = (await asking.post(RUNS, {"since_ms": HOUR_MS}))["reconciliations"]
    for _ in range(2):
        await asking.post(f"{RUNS}/{run['id']}/cancel")
        assert (await over(asking, run["id"]))["state"] == "cancelled"
