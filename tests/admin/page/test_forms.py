"""Forms as they arrive: their time and their size are limited, whoever sends them."""

import asyncio
from urllib.parse import urlencode

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from relay.admin import operation
from relay.admin.page import forms


def request(*bodies: bytes, more: bool = False) -> Request:
    """A form in some parts; with `more`, its end never comes."""
    parts = list(bodies)

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": more or bool(parts)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_a_form_is_read_without_its_empty_fields() -> None:
    assert await forms.form(request(b"a=1&b=", b"&c=%20")) == {"a": "1", "c": " "}


async def test_a_large_form_is_read_as_well() -> None:
    text = "é" * forms.SMALL_MAX
    assert await forms.form(request(urlencode({"a": text}).encode())) == {"a": text}


async def test_a_form_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "BODY_WAIT_S", 0.01)
    with pytest.raises(HTTPException) as refused:
        await forms.form(request(b"token=", more=True))
    assert refused.value.status_code == 408


async def test_a_form_that_is_too_large_is_given_up_before_its_end() -> None:
    with pytest.raises(HTTPException) as refused:
        await forms.form(request(b"x" * 11, more=True), size_max=10)
    assert refused.value.status_code == 413


async def test_a_form_of_too_many_fields_is_refused() -> None:
    with pytest.raises(HTTPException) as refused:
        await forms.form(request(b"a=1&" * (forms.FIELDS_MAX + 1)))
    assert refused.value.status_code == 400
