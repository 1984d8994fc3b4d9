"""Times of the cluster's protocol, in seconds."""

LEASE_S = 10.0
"""Expiry of an ownership row after its last renewal, judged by the database's clock."""

MARGIN_S = 2.0
"""A holder stops this long before the earliest expiry: time to cancel its sends."""

TRUST_S = LEASE_S - MARGIN_S
"""A holder trusts its lease for this long, counted from before the renewal was sent."""

RENEW_S = 3.0
"""Interval of heartbeats, each of which renews all leases of a member."""

SURVEY_S = 1.0
"""Interval of looks at the ownership rows."""

SURVEY_JITTER = 0.2
"""Share of `SURVEY_S` that is added or subtracted at random, to keep members out of step."""

WITNESS_S = 9.0
"""An expired row is taken only after this member has seen it unchanged for this long.

The holder's trust has ended by then, even if the database's clock was set forward. It is less than
`LEASE_S`, so a takeover waits no longer for it: the last renewal is seen within a survey or so.
"""

UNCLAIMED_S = 1.0
"""A free sink that its designated member leaves for this long is open to all members."""

TAKEOVER_S = 15.0
"""A sink has a new owner this long after a kill, while the database is well."""

ANSWER_TIMEOUT_S = 2.0
"""A statement of the planner without an answer for this long is lost: close its connection."""

RETRY_S = 0.5
"""Wait after a lost statement."""

POLL_MIN_S = 0.01
"""Interval of polls while deliveries keep coming."""

POLL_MAX_S = 0.5
"""Interval of polls in a quiet time; a survey takes the place of one."""

POLL_LISTENING_S = 5.0
"""The same while new deliveries are announced, so that surveys nearly always take their place."""

POLL_FAST_FOR_S = 1.0
"""Time after the last new delivery before the interval of polls doubles."""
