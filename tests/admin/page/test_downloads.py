"""Files of tables: sent while they are read, and a stranger's text is no formula in them."""

import csv
import io
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from relay.admin.page.downloads import Rows, as_csv, as_json
from relay.admin.page.views.people.section import ExportDocument
from relay.core.errors import StoreUnavailable
from tests.conftest import ManualClock

RECORDS: Any = SimpleNamespace(events=[], unreadable=[{}], mentions=[], views=[], watched=[])


async def written(parts: AsyncGenerator[Rows, None]) -> list[list[str]]:
    response = await as_csv(parts, "a.csv", ManualClock())
    assert isinstance(response, StreamingResponse)
    chunks = [bytes(chunk) async for chunk in response.body_iterator if not isinstance(chunk, str)]
    return list(csv.reader(io.StringIO(b"".join(chunks).decode())))


async def cell(value: object) -> str:
    async def one() -> AsyncGenerator[Rows, None]:
        yield [[value]]

    ((read,),) = await written(one())
    return read


@pytest.mark.parametrize("begin", [*"=+-@＝＋－＠", "\ta", " =", "\u00a0="])  # noqa: RUF001
async def test_a_formula_begins_with_an_apostrophe(begin: str) -> None:
    assert await cell(f"{begin}1+1") == f"'{begin}1+1"


@pytest.mark.parametrize("separator", ["\t", "\r", "\n"])
async def test_a_formula_behind_a_separator_begins_with_an_apostrophe_too(separator: str) -> None:
    assert await cell(f"{separator}=1+1") == f"'{separator}'=1+1"


@pytest.mark.parametrize("value", ["a=1", " a", "1-2", "", "'=1", "a, -5", "a;b|c\td", "a; 1-2"])
async def test_other_texts_stay_as_they_are(value: str) -> None:
    assert await cell(value) == value


async def test_numbers_stay_numbers() -> None:
    assert await cell(-1) == "-1"


async def test_a_file_that_is_cut_says_so_in_its_last_row() -> None:
    async def cut() -> AsyncGenerator[Rows, None]:
        yield [["id"], ["a"]]
        raise StoreUnavailable("the disk is gone")

    text = "The rest is missing; load the file again. The reason: the disk is gone"
    assert await written(cut()) == [["id"], ["a"], [text]]


async def test_an_export_that_is_cut_says_so_in_a_member_of_its_own() -> None:
    async def cut(*parts: bytes) -> AsyncGenerator[bytes, None]:
        for part in parts:
            yield part
        raise StoreUnavailable("the disk is gone")

    lost = "The rest is missing; load the file again. The reason: the disk is gone"
    document = ExportDocument()
    begun: dict[bytes, dict[str, Any]] = {
        b"": {},
        document.add(RECORDS): {"events": [], "unreadable": [{}]},
    }
    for part, lists in begun.items():
        response = await as_json(cut(part), "a.json")
        assert isinstance(response, StreamingResponse)
        text = b"".join([bytes(each) async for each in response.body_iterator])  # type: ignore[arg-type]
        assert json.loads(text) == {**lists, "incomplete": lost}


async def test_a_table_that_cannot_be_read_is_not_downloaded() -> None:
    async def refused() -> AsyncGenerator[Rows, None]:
        raise HTTPException(404, "Unknown sink.")
        yield []

    with pytest.raises(HTTPException):
        await written(refused())


async def test_rows_are_read_as_they_are_sent() -> None:
    read: list[int] = []

    async def many() -> AsyncGenerator[Rows, None]:
        for number in range(3):
            read.append(number)
            yield [[number]]

    response = await as_csv(many(), "a.csv", ManualClock())
    assert isinstance(response, StreamingResponse)
    assert read == [0]
