"""The tables of a store, with what a copy takes of each and in which order."""

import msgspec

ROW_ID = "rowid"


class CopiedTable(msgspec.Struct, frozen=True):
    """One table; its columns are those that the source has."""

    name: str
    key: tuple[str, ...]
    """Columns of its order, by which a copy that was cut off goes on."""
    row_id: str | None = None
    """Column that takes SQLite's own number of a row, which is in the key then."""
    numbered: str | None = None
    """Column whose values the target assigns."""


TABLES = (
    CopiedTable("keys", ("name",)),
    CopiedTable("state", ("name",)),
    CopiedTable("events", ("seq",), numbered="seq"),
    CopiedTable("deliveries", ("event", "sink")),
    CopiedTable("attempts", ("number",), row_id="number", numbered="number"),
    CopiedTable("unreadable", ("number",), row_id="number", numbered="number"),
    CopiedTable("replays", ("id",), numbered="id"),
    CopiedTable("paused_sinks", ("sink",)),
    CopiedTable("erasures", ("id",), numbered="id"),
    CopiedTable("rotations", ("source",)),
    CopiedTable("quarantine", ("number",), numbered="number"),
    CopiedTable("absences", ("id",), numbered="id"),
    CopiedTable("audit", ("id",), numbered="id"),
    CopiedTable("totals", ("source", "kind", "milestone")),
    CopiedTable("videos", ("number",), numbered="number"),
    CopiedTable("audience", ("event",)),
    CopiedTable("viewers", ("number",), numbered="number"),
    CopiedTable("audience_days", ("number",), numbered="number"),
    CopiedTable("audience_weeks", ("number",), numbered="number"),
    CopiedTable("sessions", ("digest",)),
    CopiedTable("known_clients", ("mark",)),
    CopiedTable("sink_states", ("sink", "at")),
    CopiedTable("library", ("source", "video", "change")),
    CopiedTable("reconciliations", ("id",), numbered="id"),
    CopiedTable("reconciled_places", ("source",)),
)
"""Keys and state first: without them the others mean nothing."""

LEFT_OUT = {
    "migrations": "each engine has its own",
    "ids": "of SQLite, which has no index of all ids",
    "id_filters": "of SQLite, as ids",
    "sqlite_sequence": "of SQLite; the sequences of the target go on from it",
    "added_totals": "parts of totals that the target has not added up yet",
    "backlogs": "counted from the deliveries",
    "request_budgets": "of the target's members, for a minute",
    "members": "of the relays that run",
    "ownership": "of the relays that run",
    "server_runs": "of the target's server",
}
"""Every other table of either engine, with the reason."""

COLUMNS_LEFT_OUT = {
    ("deliveries", "leased"): "of the relays that run",
    ("reconciliations", "member"): "of the relays that run",
}
"""Columns that only the target has, with the reason why they keep their default."""

STATE_LEFT_OUT = frozenset({"clean", "probed", "copying", "indexed"})
"""Rows of `state` that say something of the engine, not of the events."""
