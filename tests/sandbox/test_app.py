"""The sandbox serves programs and no web page of another origin."""

import re

import httpx
import pytest

from tests.sandbox.service import Served, serving

pytestmark = pytest.mark.servers

KEY = {"name": "stolen", "access": "Admin"}


async def create_key(served: Served, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    # As a form or a plain text, a page may send it to anyone.
    return await served.client.post(
        f"{served.url}/sandbox/keys", json=KEY, headers={"content-type": "text/plain", **named}
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"host": "evil.test"},
        {"host": "127.0.0.1.evil.test:8090"},
        {"host": "evil.test", "origin": "http://evil.test", "sec_fetch_site": "same-origin"},
        {"host": ""},
        {"host": "a b"},
    ],
)
async def test_a_web_page_gets_no_key(headers: dict[str, str], served: Served) -> None:
    before = len(served.sandbox.workspace.keys)
    answer = await create_key(served, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    for path in ("/sandbox/keys", "/v1/videos", "/v1/openapi.json", "/nothing"):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        read = await served.client.get(f"{served.url}{path}", headers=named)
        assert read.status_code == 403, path
    assert len(served.sandbox.workspace.keys) == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"host": "LOCALHOST.:1"},
        {"host": "[::1]:8090"},
        {"host": "192.0.2.7:8090"},
        {"host": "studio.test:8090"},
        {"host": "studio.test:8090", "origin": "http://studio.test:8090"},
        {"host": "studio.test", "origin": "https://studio.test", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
    ],
)
async def test_programs_and_its_own_pages_are_served(headers: dict[str, str]) -> None:
    async with serving(allowed_hosts=["studio.test"]) as served:
        assert (await create_key(served, **headers)).status_code == 201


async def test_an_unknown_name_is_told_with_the_option_that_allows_it(served: Served) -> None:
    answer = await create_key(served, host="box.test:8090")
    assert re.search("--allowed-host box.test", answer.json()["error"]["message"])
