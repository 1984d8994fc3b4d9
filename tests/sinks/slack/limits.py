"""Slack's rules for a message, written down once more and apart from the code that keeps them."""

import copy
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import orjson
from slack_sdk.models.blocks import Block

OUR_LINKS = re.compile(
    r"<mailto:([\w.%+-]+@[\w.-]+)\|\1>"
    r"|<!date\^[0-9]+\^\{date_short_pretty\}, \{time\}\|[0-9: UTC-]+>",
    re.ASCII,
)
TEXT_MAX = {"header": 150, "section": 3000, "context": 3000}


def check(payload: dict[str, Any]) -> None:
    """Fail unless Slack would take the payload, and nothing in it could act on a reader."""
    assert set(payload) <= {"text", "blocks", "unfurl_links", "unfurl_media"}
    assert payload["unfurl_links"] is False
    assert payload["unfurl_media"] is False
    assert 0 < len(payload["text"].strip()) <= 40_000
    harmless(payload["text"])
    blocks = payload.get("blocks", [])
    assert len(blocks) <= 50
    assert len(orjson.dumps(blocks).decode()) <= 13_200
    for block in blocks:
        _check_block(block)


def harmless(mrkdwn: str) -> None:
    """Fail where a text has markup, or a broken entity, that we did not put there."""
    rest = OUR_LINKS.sub("", mrkdwn)
    assert "<" not in rest
    assert ">" not in rest
    assert "&" not in re.sub("&(amp|lt|gt);", "", rest)


def texts(payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every text object."""
    for block in payload.get("blocks", []):
        yield from _texts(block)


def _check_block(block: dict[str, Any]) -> None:
    parsed = Block.parse(copy.deepcopy(block))
    assert parsed is not None
    assert parsed.to_dict()["type"] == block["type"]
    assert block.get("fields") is None or 0 < len(block["fields"]) <= 10
    assert block.get("elements") is None or 0 < len(block["elements"]) <= 10
    limit = 2000 if "fields" in block else TEXT_MAX[block["type"]]
    for text in _texts(block):
        _check_text(text, limit)


def _check_text(text: dict[str, Any], limit: int) -> None:
    words = text["text"]
    escaped = words if text["type"] == "mrkdwn" else _escape(words)
    assert words.strip()
    assert len(escaped.encode("utf-16-le")) // 2 <= limit
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"} for char in words)
    if text["type"] == "mrkdwn":
        assert text["verbatim"] is True
        harmless(words)
    else:
        assert text["emoji"] is False


def _texts(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "text" in block:
        yield block["text"]
    yield from block.get("fields", [])
    yield from block.get("elements", [])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
