"""Statistics as CSV."""

import csv
import io
from collections.abc import Sequence

import msgspec

from relay.sandbox.analytics.records import Record


def table(kind: type[Record], records: Sequence[Record]) -> str:
    """Write a line of names, which are those of the JSON answers, and one line for each record."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(msgspec.to_builtins(records))
    return text.getvalue()
