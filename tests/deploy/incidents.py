"""The incidents of the scripted days (scripted_day.py) and their times."""

from dataclasses import dataclass, field

from relay.core.event import WEBHOOK_TEST, Outcome

START_S = 1_772_409_600
"""Monday, 2026-03-02, 00:00 UTC."""

SCRAPE_S = 60
END_S = START_S + 86_400
SOURCES = ("main", "academy")
SINKS = ("crm", "sales", "warehouse")

STARTED_PER_HOUR = (
    *(4, 2, 2, 1, 2, 5, 14, 36, 74, 110, 128, 120),
    *(84, 102, 126, 118, 98, 76, 60, 54, 64, 48, 26, 10),
)
"""Views of `main`, by the hour of the day."""

GOES_ON = {"started": 0.78, "25%": 0.79, "50%": 0.81, "75%": 0.83}
"""The share that reaches the next milestone."""

LEADS_PER_VIEW = 0.07
GIB = 1 << 30


def at(clock: str) -> int:
    """Unix seconds of a time of that day, such as 10:40."""
    hour, minute = clock.split(":")
    return START_S + int(hour) * 3600 + int(minute) * 60


@dataclass(frozen=True, kw_only=True)
class Incidents:
    """The incidents of a day; outside them all is well."""

    parts: dict[str, tuple[int, int]]
    """Begin and end, in Unix seconds."""

    once: dict[int, tuple[str, str, Outcome]] = field(default_factory=dict)
    """Single events by time: source, kind, outcome."""

    def is_active(self, what: str, now_s: int) -> bool:
        """Whether this incident is going on."""
        begin_s, end_s = self.parts.get(what, (0, 0))
        return begin_s <= now_s < end_s

    def begins(self, what: str, now_s: int) -> bool:
        return self.parts.get(what, (0, 0))[0] == now_s


EVENTFUL = Incidents(
    parts={
        "warehouse paused": (at("02:00"), at("03:10")),
        "update": (at("06:00"), at("06:01")),
        "crm parked": (at("10:40"), at("11:50")),
        "rotation": (at("12:05"), at("12:08")),
        "strangers": (at("13:00"), at("13:06")),
        "sales throttled": (at("15:10"), at("15:25")),
        "slow disk": (at("16:20"), at("16:24")),
        "refused by crm": (at("17:05"), at("17:08")),
        "crash": (at("18:30"), at("18:33")),
        "config refused": (at("20:00"), at("20:20")),
    },
    once={
        at("09:30"): ("main", WEBHOOK_TEST, "accepted"),
        at("14:14"): ("main", "video.ready", "conflict"),
        at("14:40"): ("academy", "other", "unreadable"),
    },
)
"""Incidents enough for every panel to show data, and for some alerts."""

QUIET = Incidents(
    parts={
        # A night longer than the age at which a backlog becomes a page.
        "warehouse paused": (at("01:30"), at("09:00")),
        "stray": (at("03:10"), at("03:12")),
        "update": (at("06:00"), at("06:01")),
        "crm parked": (at("10:40"), at("10:48")),
        "rotation": (at("12:05"), at("12:08")),
        "strangers": (at("13:00"), at("13:02")),
        "sales throttled": (at("15:10"), at("15:25")),
        "slow disk": (at("16:20"), at("16:24")),
        # Taken out of the config with a backlog, which is kept.
        "warehouse parked": (at("18:51"), at("19:00")),
        "warehouse removed": (at("19:00"), END_S),
        "crash": (at("22:00"), at("22:01")),
    },
    once={at("09:30"): ("main", WEBHOOK_TEST, "accepted")},
)
"""A day of small hiccups that must raise no alert."""
