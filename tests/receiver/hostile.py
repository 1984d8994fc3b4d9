"""The odd signature headers and bodies of hostile-requests.md, section 7, and what each is due."""

import base64
import gzip
from collections.abc import Callable
from typing import NamedTuple

from relay.core import signature
from relay.core.errors import RejectReason

UNAUTHORIZED = b'{"status":"unauthorized"}'
"""The body of every 401."""

EVENT = b'{"id":"evt_1","event":"video.ready","createdAt":"2026-03-02T09:30:00.000Z","data":{}}'


class Sender(NamedTuple):
    """What the sender of a good request knows."""

    secret: bytes
    now_s: int
    body: bytes

    @property
    def t(self) -> bytes:
        return b"%d" % self.now_s

    @property
    def v1(self) -> bytes:
        return self.sign(self.t)

    @property
    def good(self) -> bytes:
        return self.over(self.t)

    def sign(self, timestamp: bytes) -> bytes:
        return signature.sign(self.secret, timestamp, self.body)

    def over(self, timestamp: bytes) -> bytes:
        """A header that is good but for its time, which is signed as it stands there."""
        return b"t=%b,v1=%b" % (timestamp, self.sign(timestamp))


class Odd(NamedTuple):
    """One odd request's signature header lines; without a reason, it is taken all the same."""

    row: int
    name: str
    lines: Callable[[Sender], list[bytes]]
    reason: RejectReason | None

    @property
    def id(self) -> str:
        return f"{self.row:02}-{self.name}"


BAD = b"0" * 64


def _one(
    row: int, name: str, line: Callable[[Sender], bytes], reason: RejectReason | None = "malformed"
) -> Odd:
    return Odd(row, name, lambda it: [line(it)], reason)


def _time(row: int, name: str, timestamp: bytes) -> Odd:
    return _one(row, name, lambda it: it.over(timestamp))


def _digest(row: int, name: str, change: Callable[[bytes], bytes]) -> Odd:
    return _one(row, name, lambda it: b"t=%b,v1=%b" % (it.t, change(it.v1)))


def _off(row: int, name: str, seconds: int, reason: RejectReason | None) -> Odd:
    return _one(row, name, lambda it: it.over(b"%d" % (it.now_s + seconds)), reason)


HEADERS = (
    Odd(1, "no-header", lambda _: [], "missing"),
    _one(2, "empty", lambda _: b""),
    _one(2, "blank", lambda _: b" \t "),
    _one(3, "over-4-KiB", lambda it: it.good + b",x=" + b"y" * 4096),
    _one(3, "33-pairs", lambda it: it.good + b",x=y" * 31),
    _one(3, "32-pairs", lambda it: it.good + b",x=y" * 30, None),
    Odd(4, "two-equal-lines", lambda it: [it.good, it.good], "ambiguous"),
    Odd(4, "bad-then-good-line", lambda it: [b"t=1,v1=" + BAD, it.good], "ambiguous"),
    Odd(4, "good-then-empty-line", lambda it: [it.good, b""], "ambiguous"),
    Odd(4, "one-value-in-two-lines", lambda it: [b"t=" + it.t, b"v1=" + it.v1], "ambiguous"),
    _one(5, "no-t", lambda it: b"v1=" + it.v1),
    _one(6, "no-v1", lambda it: b"t=" + it.t),
    _one(7, "only-v0", lambda it: b"t=%b,v0=%b" % (it.t, it.v1)),
    _one(7, "only-v2", lambda it: b"t=%b,v2=%b" % (it.t, it.v1)),
    _one(7, "only-V1", lambda it: b"t=%b,V1=%b" % (it.t, it.v1)),
    _one(8, "unknown-schemes", lambda it: b"v0=%b,v2=x,%b,=,a==" % (BAD, it.good), None),
    _one(9, "second-v1-good", lambda it: b"t=%b,v1=%b,v1=%b" % (it.t, BAD, it.v1), None),
    _one(9, "first-v1-good", lambda it: b"%b,v1=%b" % (it.good, BAD), None),
    _one(9, "first-v1-unreadable", lambda it: b"t=%b,v1=!,v1=%b" % (it.t, it.v1), None),
    _one(10, "no-v1-good", lambda it: b"t=%b,v1=%b,v1=%b" % (it.t, BAD, b"f" * 64), "mismatch"),
    _one(11, "100-v1", lambda it: b"t=%b%b,v1=%b" % (it.t, b",v1=0" * 99, it.v1)),
    _one(11, "9-v1", lambda it: b"t=%b%b,v1=%b" % (it.t, (b",v1=" + BAD) * 8, it.v1)),
    _one(11, "8-v1", lambda it: b"t=%b%b,v1=%b" % (it.t, (b",v1=" + BAD) * 7, it.v1), None),
    _one(11, "9-v1-all-but-one-unreadable", lambda it: it.good + b",v1=!" * 8),
    _one(12, "equal-t", lambda it: b"t=%b,%b" % (it.t, it.good)),
    _one(12, "good-t-first", lambda it: b"%b,t=1" % it.good),
    _one(12, "good-t-last", lambda it: b"t=1,%b" % it.good),
    _one(13, "v1-first", lambda it: b"v1=%b,t=%b" % (it.v1, it.t), None),
    _one(13, "t-first", lambda it: it.good, None),
    _one(14, "blank-after-comma", lambda it: it.good.replace(b",", b", "), None),
    _one(14, "tabs-and-blanks", lambda it: b" \t" + it.good.replace(b",", b"\t , \t") + b" ", None),
    _one(14, "blank-around-sign", lambda it: it.good.replace(b"=", b" = ")),
    _time(15, "plus", b"+1772443800"),
    _time(15, "underscores", b"1_772_443_800"),
    _time(15, "arabic-digits", "١٧٧٢٤٤٣٨٠٠".encode()),
    _time(15, "latin-1-digit", b"177244380\xb2"),
    _one(15, "leading-zero", lambda it: it.over(b"0" + it.t)),
    _one(15, "fraction", lambda it: it.over(it.t + b".0")),
    _time(15, "exponent", b"1.7e9"),
    _time(15, "hex", b"0x69a55a18"),
    _time(15, "empty", b""),
    _time(15, "not-a-number", b"NaN"),
    _time(16, "minus", b"-1"),
    _time(16, "zero", b"0"),
    _time(17, "5000-digits", b"1" * 5000),
    _time(17, "4000-digits", b"1" * 4000),
    _off(18, "stale", -330, "stale"),
    _time(18, "one", b"1")._replace(reason="stale"),
    _off(18, "not-yet-stale", -270, None),
    _off(19, "future", 330, "future"),
    _time(19, "12-digits", b"999999999999")._replace(reason="future"),
    _off(19, "not-yet-future", 270, None),
    _one(20, "milliseconds", lambda it: it.over(it.t + b"000")),
    _one(20, "microseconds", lambda it: it.over(it.t + b"000000")),
    _digest(22, "empty", lambda _: b""),
    _digest(23, "prefix-of-63", lambda it: it[:63]),
    _digest(23, "prefix-of-1", lambda it: it[:1]),
    _digest(24, "one-more", lambda it: it + b"0"),
    _digest(24, "padded", lambda it: it + b"=="),
    _digest(24, "twice", lambda it: it * 2),
    _digest(25, "uppercase", bytes.upper),
    _digest(26, "no-hex", lambda _: b"g" * 64),
    _digest(26, "non-ascii", lambda it: it[:63] + b"\xe9"),
    _digest(26, "emoji", lambda it: it[:60] + "🔑".encode()),
    _one(26, "non-ascii-beside-good", lambda it: b"t=%b,v1=\xff,v1=%b" % (it.t, it.v1), None),
    _digest(27, "quoted", lambda it: b'"%b"' % it),
    _digest(27, "0x", lambda it: b"0x" + it),
    _one(27, "semicolon", lambda it: it.good.replace(b",", b";")),
    _digest(28, "base64", lambda it: base64.b64encode(bytes.fromhex(it.decode()))),
)
"""Rows 1 to 28 but for 21, which is about our own clock."""

NUL = _digest(26, "nul", lambda it: it[:63] + b"\0")
"""The server lets none through, the parser must bear it all the same."""


class Body(NamedTuple):
    """A verified body without a usable event in it."""

    row: int
    name: str
    body: bytes
    reason: str

    @property
    def id(self) -> str:
        return f"{self.row:02}-{self.name}"


_NOT_JSON = "the body is not JSON"
_NO_OBJECT = "the body is not a JSON object"
_TWICE = "the body has a duplicate key"
_BAD_ID = "id is not a text of 1 to 255 printable characters"
_BAD_KIND = "event is not a text of 1 to 255 printable characters"


def _number(written: bytes) -> bytes:
    return b'{"id":"a","event":"video.ready","data":%b}' % written


def _id(written: bytes) -> bytes:
    return b'{"id":%b,"event":"video.ready"}' % written


UNREADABLE = (
    Body(30, "not-utf-8", b'{"id":"\xff","event":"video.ready"}', _NOT_JSON),
    Body(30, "utf-16", '{"id":"a","event":"video.ready"}'.encode("utf-16"), _NOT_JSON),
    Body(30, "byte-order-mark", b"\xef\xbb\xbf" + _id(b'"a"'), _NOT_JSON),
    Body(31, "cut-off", b'{"id":"a"', _NOT_JSON),
    Body(31, "garbage-behind", _id(b'"a"') + b"x", _NOT_JSON),
    Body(31, "form", b"id=a&event=video.ready", _NOT_JSON),
    Body(31, "blank", b" \r\n", _NOT_JSON),
    Body(31, "array", b"[" + _id(b'"a"') + b"]", _NO_OBJECT),
    Body(31, "text", b'"a"', _NO_OBJECT),
    Body(31, "number", b"1", _NO_OBJECT),
    Body(31, "null", b"null", _NO_OBJECT),
    Body(32, "same-id-twice", b'{"id":"a","id":"b","event":"video.ready"}', _TWICE),
    Body(32, "inner-key-twice", _number(b'{"x":1,"x":1}'), _TWICE),
    Body(32, "escaped-key-twice", b'{"id":"a","\\u0069d":"b","event":"video.ready"}', _TWICE),
    Body(32, "nan", _number(b"NaN"), _NOT_JSON),
    Body(32, "infinity", _number(b"-Infinity"), _NOT_JSON),
    Body(32, "half-character-in-id", _id(b'"a\\ud800"'), _BAD_ID),
    Body(32, "half-character-in-event", b'{"id":"a","event":"video.\\udc00"}', _BAD_KIND),
    Body(32, "nested-100000-deep", _number(b"[" * 100_000 + b"]" * 100_000), _NOT_JSON),
    Body(32, "objects-nested-deep", _number(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), _NOT_JSON),
    Body(33, "id-a-number", _id(b"1"), _BAD_ID),
    Body(33, "id-null", _id(b"null"), _BAD_ID),
    Body(33, "id-an-object", _id(b"{}"), _BAD_ID),
    Body(33, "id-of-10-kB", _id(b'"%b"' % (b"a" * 10_000)), _BAD_ID),
    Body(33, "id-of-256", _id(b'"%b"' % (b"a" * 256)), _BAD_ID),
    Body(33, "id-empty", _id(b'""'), _BAD_ID),
    Body(33, "id-with-line-break", _id(b'"a\\nb"'), _BAD_ID),
    Body(33, "id-with-nul", _id(b'"a\\u0000"'), _BAD_ID),
    Body(33, "id-that-turns-the-line", _id(b'"a\\u202eb"'), _BAD_ID),
    Body(33, "no-id", b'{"event":"video.ready"}', _BAD_ID),
    Body(33, "no-event", b'{"id":"a"}', _BAD_KIND),
    Body(33, "event-a-list", b'{"id":"a","event":["video.ready"]}', _BAD_KIND),
    Body(33, "event-of-256", b'{"id":"a","event":"%b"}' % (b"a" * 256), _BAD_KIND),
    Body(44, "empty", b"", _NOT_JSON),
    Body(45, "gzip", gzip.compress(_id(b'"a"'), mtime=0), _NOT_JSON),
)

READABLE = {
    "id-of-255": _id(b'"%b"' % (b"a" * 255)),
    "id-with-blanks": _id(b'"a b"'),
    "id-beyond-the-bmp": _id('"🎬"'.encode()),
    "no-created-at": b'{"id":"a","event":"video.ready"}',
    "data-of-any-type": b'{"id":"a","event":"webhook.test","data":7}',
    "integer-of-30-digits": _number(b"9" * 30),
    "integer-of-400-digits": _number(b"9" * 400),
    "integer-of-5000-digits": _number(b"-" + b"9" * 5000),
    "1e400": _number(b"1e400"),
    "half-character": _number(b'{"na\\uDEADme":"Zo\\ud83d"}'),
    "half-character-in-created-at": b'{"id":"a","event":"b","createdAt":"\\ud800","data":1e999}',
    "nested-500-deep": _number(b"[" * 500 + b"]" * 500),
    "blanks-around": b' \n{"id":"a","event":"video.ready"}\r\n',
    "unknown-members": b'{"id":"a","event":"video.ready","zz":{"id":1}}',
}
"""Odd, but events all the same."""
