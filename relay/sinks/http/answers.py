"""What the answers of one `http` sink mean: its own rules, then the table of all sinks (pure).

recipes.md, section 1: some APIs answer 400 for a hook that is gone, or 200 for what they refuse.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from relay.core import expressions, foreign_json
from relay.core.delivery import SinkResponse
from relay.core.errors import (
    InvalidRule,
    Meaning,
    Misconfigured,
    Refused,
    SinkError,
    Temporary,
)
from relay.core.setting_errors import Faults
from relay.outbound.http import responses
from relay.outbound.http.responses import HttpResponse

MEANINGS: Mapping[str, Meaning] = {
    "retry_on": (Temporary, "`retry_on` names this status"),
    "park_on": (Misconfigured, "`park_on` names this status"),
    "refuse_on": (Refused, "`refuse_on` names this status"),
}
"""Errors by the keys that list statuses; those of `delivered_on` raise none."""

LISTS = ("delivered_on", *MEANINGS)

_STATUSES = range(200, 1000)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LARGE_BYTES = 2 * 1024
"""A rule over more of an answer's body may take longer than the event loop can wait."""


class AnswerRules:
    """Tells a delivered event from a failed one, by the status and body of an answer."""

    def __init__(
        self,
        *,
        success: expressions.Expression | None,
        lists: Mapping[str, Iterable[int]],
        retry_after_header: str | None,
    ) -> None:
        """`lists` are statuses by the keys in `LISTS`, each status in one of them at most."""
        self._success = success
        self._header = retry_after_header
        self._accepted = frozenset(lists.get("delivered_on", ()))
        self._meanings = {
            status: meaning for key, meaning in MEANINGS.items() for status in lists.get(key, ())
        }
        confirming = frozenset(range(200, 300)) if success is None else frozenset[int]()
        self._delivered = (confirming | self._accepted) - self._meanings.keys()
        """Statuses that alone prove a delivery."""
        self._paced = frozenset({429, *lists.get("retry_on", ())})

    def takes_long(self, response: HttpResponse) -> bool:
        """Whether `outcome` is to be called on a thread."""
        return self._success is not None and len(response.body) > _LARGE_BYTES

    def outcome(self, response: HttpResponse, *, now_ms: int) -> SinkResponse:
        """Return the answer to a delivered event; raises Temporary, Refused or Misconfigured."""
        if response.status not in self._delivered:
            meaning = self._meaning(response)
            if meaning is not None:
                raise self._error(meaning, response, said=str(response.status), now_ms=now_ms)
        return SinkResponse(response.status, response.excerpt)

    def raise_for_check(self, response: HttpResponse, *, method: str, now_ms: int) -> None:
        """Raise as `outcome` does, but a rule over bodies does not hold for this method."""
        meaning = responses.meaning(response.status)
        if meaning is None or response.status in self._delivered:
            return
        meaning = self._meanings.get(response.status, meaning)
        raise self._error(meaning, response, said=f"{response.status} to {method}", now_ms=now_ms)

    def ends_connection(self, status: int) -> bool:
        """Whether the next request is to go over another connection."""
        if status in self._accepted:
            return False
        kind, _ = self._meanings.get(status, (None, ""))
        if kind is Misconfigured:
            return True
        return kind is not Refused and responses.ends_connection(status)

    def _meaning(self, response: HttpResponse) -> Meaning | None:
        meaning = responses.meaning(response.status)
        if meaning is None and self._success is not None:
            meaning = _judge(self._success, response)
            if meaning is None:
                return None
        return self._meanings.get(response.status, meaning)

    def _error(
        self, meaning: Meaning, response: HttpResponse, *, said: str, now_ms: int
    ) -> SinkError:
        error = responses.error(meaning, response, said=said, now_ms=now_ms)
        # Of other answers the header may speak of something else, for some APIs always send it.
        is_paced = self._header is not None and response.status in self._paced
        if is_paced and isinstance(error, Temporary):
            asked_ms = responses.reset_ms(response.headers, self._header or "", now_ms=now_ms)
            if asked_ms is not None:
                error.retry_after_ms = max(asked_ms, error.retry_after_ms or 0)
        return error


def rules_of(settings: Any) -> AnswerRules:
    """Check `success`, the lists and `retry_after_header`; raises ValueErrors as `Faults` does."""
    faults, lists = Faults(), dict[str, tuple[int, ...]]()
    with faults.collect():
        success = None if settings.success is None else _expression(settings.success)
    for key in LISTS:
        with faults.collect():
            lists[key] = getattr(settings, key)
    with faults.collect():
        _check_lists(lists)
    with faults.collect():
        header = settings.retry_after_header
        if header is not None and _NAME.fullmatch(header) is None:
            raise ValueError("retry_after_header: expected a header's name, as X-RateLimit-Reset")
    faults.raise_all()
    return AnswerRules(success=success, lists=lists, retry_after_header=header)


def warnings(success: str | None) -> Iterator[str]:
    """Yield what a usable rule is unlikely to mean."""
    if success is not None and expressions.Expression(success).compares_names:
        yield (
            "success: compares two names of the answer: write a text as 'text', in single quotes, "
            "and a number, true, false or null as `1`, in backticks"
        )


def _expression(text: str) -> expressions.Expression:
    try:
        expression = expressions.Expression(text)
        expression.check()
    except InvalidRule as error:
        raise ValueError(f"success: is not a JMESPath expression: {error}") from None
    return expression


def _check_lists(lists: Mapping[str, Iterable[int]]) -> None:
    faults, seen = Faults(), dict[int, str]()
    for key, statuses in lists.items():
        for index, status in enumerate(statuses):
            with faults.collect():
                if status not in _STATUSES:
                    raise ValueError(f"{key}[{index}]: expected a status from 200 to 999")
                first = seen.setdefault(status, key)
                if first != key:
                    raise ValueError(
                        f"{key}[{index}]: {status} is in {first} as well: expected it in one list"
                    )
    faults.raise_all()


def _judge(success: expressions.Expression, response: HttpResponse) -> Meaning | None:
    """Return None where the rule is true of a 2xx.

    What it cannot be asked about is likely not the answer of that API, and another try would
    change nothing, but could make a second copy: that parks the sink.
    """
    confirms = f"if it confirms an event, put {response.status} into `delivered_on`"
    if not response.is_whole:
        return (
            Misconfigured,
            f"`success` cannot be asked about an answer of more than 64 KiB: {confirms}",
        )
    try:
        document: Any = foreign_json.decode(response.body)
    except ValueError:
        what = "that is not JSON" if response.body else "without a body"
        return Misconfigured, f"`success` cannot be asked about an answer {what}: {confirms}"
    try:
        is_true = success.is_true(document)
    except expressions.FAILURES as error:
        return Temporary, f"`success` fails on the answer ({type(error).__name__})"
    return None if is_true else (Temporary, "`success` is not true of the answer")
