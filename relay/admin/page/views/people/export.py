"""The export of a person as one JSON object of lists, written part by part."""

import msgspec

from relay.admin.api.people import PersonRecords

LISTS = ("events", "unreadable", "mentions", "views", "watched")
"""Of an export, in the order in which its parts fill them."""


class ExportDocument:
    """Writes an object of lists; its records come in the order of the lists."""

    def __init__(self) -> None:
        self._begun = 0

    def add(self, records: PersonRecords) -> bytes:
        """Return the text of some records."""
        text = []
        for number, name in enumerate(LISTS, start=1):
            for record in getattr(records, name):
                text.append(self._begin(number) if number > self._begun else b",")
                text += (b"\n", msgspec.json.format(msgspec.json.encode(record), indent=2))
        return b"".join(text)

    def end(self) -> bytes:
        """Return the text after the last record."""
        return self._begin(len(LISTS)) + b"\n]\n}\n"

    def _begin(self, number: int) -> bytes:
        """End the list that is open, and begin those up to a number."""
        text = b""
        for name in LISTS[self._begun : number]:
            text += (b"\n],\n" if self._begun else b"{\n") + f'"{name}": ['.encode()
            self._begun += 1
        return text
