"""Answers that parsers refuse: mended where their status is certain, else named (pure).

A destination that has taken an event and answers oddly would get it again and again.
"""

import re
from collections.abc import Iterable

FIELD_BYTES = 16 * 1024
"""Maximum size of the status line, and of each header: twice what most servers would send."""
FIELDS = 128
INTERIM_MAX = 16
"""Interim responses (1xx) to one request; a well-behaved server sends a few."""
HEAD_BYTES = 64 * 1024
"""Longest head that may be mended."""

_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?(?:\r\n|\Z)")
_INTERIM = re.compile(rb"(?:HTTP/1\.[01] 1[0-9]{2}[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n)*")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_OTHERS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"SSH-"), "an SSH server answers there"),
    (re.compile(rb"[\x15\x16]\x03"), "the port speaks TLS: the URL has to begin with https://"),
    (re.compile(rb"\0.{2}\x04", re.DOTALL), "what answers there speaks HTTP/2 alone, not HTTP/1.1"),
    (re.compile(rb"[245][0-9]{2}[ -]"), "a mail or FTP server answers there"),
)
"""Beginnings of other protocols."""

_MALFORMED = "a header of the answer is malformed"


def is_mendable_yet(received: bytes) -> bool:
    """Whether it is the beginning of a head that `mended` may take once it is whole."""
    answer = _after_interim(received)
    if len(answer) > HEAD_BYTES or _END in answer:
        return False
    if not answer:
        return True
    if _STATUS_LINE.match(answer) is None:
        return False
    whole = _whole_lines(answer)
    # A line that comes in pieces is looked at once it has ended.
    return len(whole) <= FIELDS and (answer[-1:] != b"\n" or _fields(whole) is not None)


def mended(received: bytes) -> bytes | None:
    """Return an answer with a well-formed head; None if its meaning is uncertain.

    Spaces before a colon, headers without a name and a repeated length are harmless.
    Different lengths are not: they leave the end of the answer open.
    """
    answer = _after_interim(received)
    head, end, rest = answer.partition(_END)
    status_line, *lines = head.split(b"\r\n")
    if not end or _STATUS_LINE.fullmatch(status_line) is None:
        return None
    fields = _fields(lines)
    if fields is None:
        return None
    before = received[: len(received) - len(answer)]
    return before + b"\r\n".join([status_line, *fields]) + end + rest


def fault(received: bytes, ends: str = "the connection ended") -> str:
    """Describe what the peer sent in place of an answer, without repeating any of it.

    `ends` is the subject and verb for an answer whose end is at fault.
    """
    answer = _after_interim(received)
    if received.count(b"HTTP/1.1 1", 0, len(received) - len(answer)) > INTERIM_MAX:
        return f"more than {INTERIM_MAX} interim answers (1xx) came"
    if not answer:
        after = " after an interim one (1xx)" if received else ""
        return f"{ends} without an answer{after}"
    if not answer.startswith(b"HTTP/"[: len(answer)]):
        others = (text for beginning, text in _OTHERS if beginning.match(answer))
        return next(others, "what answers there does not speak HTTP")
    head, end, body = answer.partition(_END)
    lines = head.split(b"\r\n")
    if len(lines) - 1 > FIELDS:
        return f"the answer has more than {FIELDS} headers"
    if max(map(len, lines)) > FIELD_BYTES:
        return f"the answer's status line or a header is longer than {FIELD_BYTES} bytes"
    if not end:
        if _fields(_whole_lines(answer)) is None:
            return _MALFORMED
        return f"{ends} in the head of the answer"
    return _fault_of_whole_head(lines, body, ends)


def _whole_lines(answer: bytes) -> list[bytes]:
    """Return the header lines of a head without an end; its last line may go on."""
    return answer.split(b"\r\n")[1:-1]


def _fault_of_whole_head(lines: list[bytes], body: bytes, ends: str) -> str:
    if _STATUS_LINE.fullmatch(lines[0]) is None:
        return "the answer's status line is none of HTTP/1.1"
    fields = dict[bytes, set[bytes]]()
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields.setdefault(name.strip().lower(), set()).add(value.strip())
    lengths = fields.get(b"content-length", set())
    if len(lengths) > 1:
        return "the answer has two lengths (Content-Length) that differ"
    if lengths and b"transfer-encoding" in fields:
        return "the answer has both a length and a transfer encoding"
    length = next(iter(lengths), b"")
    if lengths and not length.isdigit():
        return "the answer's length (Content-Length) is no number"
    if _fields(lines[1:]) is None:
        return _MALFORMED
    if lengths and len(body) < int(length):
        came = f"{len(body)} of {int(length)} bytes"
        return f"{ends} in the body of the answer, after {came}"
    return "the body of the answer is cut off or malformed"


def _after_interim(received: bytes) -> bytes:
    """Return the bytes from the first answer on that is not interim."""
    match = _INTERIM.match(received)
    return received[match.end() :] if match else received


def _fields(lines: Iterable[bytes]) -> list[bytes] | None:
    """Return header lines in their proper form; None where a parser might read another meaning."""
    fields: list[bytes] = []
    lengths: set[bytes] = set()
    is_encoded = False
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if not name and colon:
            continue
        if not colon or _NAME.fullmatch(name) is None or _CONTROL.search(value):
            return None
        is_encoded |= name.lower() == b"transfer-encoding"
        if name.lower() != b"content-length":
            fields.append(name + b":" + value)
            continue
        lengths |= {each.strip() for each in value.split(b",")}
    if len(lengths) > 1 or (lengths and is_encoded):
        return None
    return [*fields, *(b"content-length: " + length for length in lengths)]
