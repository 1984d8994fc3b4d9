"""What follows each statement that accepts an event, until the sender may be answered.

A commit whose answer is lost may have happened, or may still happen. Finding the event is no
proof either: after a crash, the server shows commits that its standby has never received. Only an
answer to a transaction that wrote, and so waited for the standby, is acknowledged.
"""

from typing import Literal

Step = Literal["insert", "confirm"]
"""`insert` inserts the event unless it is known. `confirm` looks it up and writes.

The write may be of any row, such as the member's own; its commit waits for the standby.
"""

Outcome = Literal["new", "known", "confirmed", "missing", "lost"]
"""`lost`: the connection failed. The next statement then uses another connection."""

Verdict = Literal["accepted", "duplicate"]

NEXT: dict[tuple[Step, Outcome], Step | Verdict] = {
    ("insert", "new"): "accepted",
    ("insert", "known"): "confirm",
    # The unique index makes it wait for the lost transaction, if that is still running.
    ("insert", "lost"): "insert",
    ("confirm", "confirmed"): "duplicate",
    ("confirm", "missing"): "insert",
    ("confirm", "lost"): "insert",
}
"""Where time runs out before a verdict, the sender is answered 503."""
