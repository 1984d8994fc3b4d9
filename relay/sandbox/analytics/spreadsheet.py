"""Statistics as CSV."""

from collections.abc import Sequence

import msgspec

from relay.core import csv_table
from relay.sandbox.analytics.records import Record


def table(kind: type[Record], records: Sequence[Record]) -> str:
    """Write a line of names, which are those of the JSON answers, and one line for each record."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    rows = (record.values() for record in msgspec.to_builtins(records))
    return csv_table.text([names, *rows])
