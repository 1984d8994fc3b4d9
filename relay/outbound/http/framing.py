"""The ends of answers on a connection: surplus bytes must never count as the next answer.

httpcore's own parser keeps such bytes, and reads the next answer from them.
"""

import httptools

INTERIM_MAX = 16
"""Interim answers (1xx) to one request; a server that means well sends a few."""


class Framing:
    """Follows the bytes of one connection, and finds any that belong to no answer."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._interim = 0
        self._is_broken = False
        self.requests = 0
        self.is_due = False
        """A request was sent, and its answer is not complete."""
        self.is_begun = False
        """Bytes of that answer have come."""

    @property
    def is_clean(self) -> bool:
        """Whether every request has its answer, and nothing else has come."""
        return not (self.is_due or self._is_broken)

    @property
    def is_flooded(self) -> bool:
        return self._interim > INTERIM_MAX

    def asked(self) -> None:
        """Take note that a request is sent."""
        self.requests += 1
        self.is_due, self.is_begun, self._interim = True, False, 0

    def received(self, data: bytes) -> None:
        self.is_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_broken = True

    def on_message_begin(self) -> None:
        if not self.is_due:
            self._is_broken = True

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._interim += 1
        else:
            self.is_due = False
