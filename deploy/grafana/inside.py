"""The part of the relay's dashboard about the relay itself: its store, its process, its starts."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import stat, table, timeseries

from deploy.grafana import asking, looks, panels
from deploy.grafana.queries import came, of_relay, quantile, rate, total

COMMITS = of_relay("relay_store_commit_seconds_bucket")
YES_NO = {1: ("yes", looks.GOOD), 0: ("no", looks.BAD)}


def store() -> Iterator[timeseries.Panel]:
    yield (
        panels.levels(
            "Store: size and room",
            "The store's files, the free space on their disk, and the free space below which new"
            " events are answered 503 ([store] min_free).",
            "bytes",
            asking.series(
                f"max by (instance) ({of_relay('relay_store_bytes')})", "{{instance}}: size"
            ),
            asking.series(
                f"max by (instance) ({of_relay('relay_store_free_bytes')})", "{{instance}}: free"
            ),
            asking.series(
                f"max by (instance) ({of_relay('relay_store_min_free_bytes')})",
                "{{instance}}: must stay free",
            ),
        )
        .override_by_regexp(".*size", looks.painted(looks.BLUE))
        .override_by_regexp(".*: free", looks.painted(looks.GOOD))
        .override_by_regexp(".*must stay free", looks.painted(looks.BAD))
        .span(8)
        .height(8)
    )
    yield (
        panels.durations(
            "Time of a transaction",
            "How long a commit takes, fsync included: what an acknowledgement waits for.",
            asking.series(quantile(0.5, COMMITS), "half"),
            asking.series(quantile(0.99, COMMITS), "99 of 100"),
        )
        .override_by_name("half", looks.painted(looks.SKY))
        .override_by_name("99 of 100", looks.painted(looks.ORANGE))
        .span(8)
        .height(8)
    )
    yield (
        panels.levels(
            "Transactions",
            "Commits per second. One carries many events when they come fast; without any traffic a"
            " heartbeat remains, and none at all means that the disk takes nothing.",
            "ops",
            asking.series(
                total(rate(of_relay("relay_store_commit_seconds_count")), "instance"),
                "{{instance}}",
            ),
        )
        .span(8)
        .height(8)
    )


def process() -> Iterator[timeseries.Panel]:
    yield (
        panels.levels(
            "Processor",
            "Share of one core. The relay uses one; near 1 it can take no more.",
            "percentunit",
            asking.series(
                total(rate(of_relay("process_cpu_seconds_total")), "instance"), "{{instance}}"
            ),
        )
        .span(6)
        .height(8)
    )
    yield (
        panels.levels(
            "Memory",
            "What the process has in memory; it should be level over days.",
            "bytes",
            asking.series(
                f"max by (instance) ({of_relay('process_resident_memory_bytes')})", "{{instance}}"
            ),
        )
        .span(6)
        .height(8)
    )
    yield (
        panels.levels(
            "Open files and connections",
            "How much of what the system allows is in use; at 100 % no one can connect any more.",
            "percentunit",
            asking.series(
                f"max by (instance) ({of_relay('process_open_fds')}"
                f" / {of_relay('process_max_fds')})",
                "{{instance}}",
            ),
        )
        .max(1)
        .span(6)
        .height(8)
    )
    yield (
        panels.bars(
            "Limits on connections",
            "How often a listener closed a connection or kept one waiting, by the limit that was"
            " reached (docs/metrics.md). The sender needs few connections: look for a proxy or a"
            " stranger that opens many.",
            "locale",
            asking.series(
                came(of_relay("relay_connections_limited_total"), "listener", "reason"),
                "{{listener}}: {{reason}}",
            ),
        )
        .no_value("no limit was reached")
        .span(6)
        .height(8)
    )


def starts() -> Iterator[stat.Panel | table.Panel]:
    yield (
        panels.sheet(
            "What runs",
            "The version of the relay, and what it runs on.",
            {
                "instance": "Instance",
                "version": "Version",
                "revision": "Revision",
                "python": "Python",
                "sqlite": "SQLite",
            },
            asking.rows(of_relay("relay_build_info")),
        )
        .span(8)
        .height(5)
    )
    yield (
        panels.number(
            "Running since",
            "When the process started.",
            "dateTimeFromNow",
            asking.value(f"1000 * max ({of_relay('relay_start_time_seconds')})"),
        )
        .span(4)
        .height(5)
    )
    yield (
        panels.number(
            "Last config in use",
            "Whether the config that was read last is the one in use. If not, a reload was refused:"
            " the log says why (config.refused), and the relay goes on with the one before.",
            "none",
            asking.value(f"min ({of_relay('relay_config_last_reload_successful')})"),
        )
        .mappings(looks.said(YES_NO))
        .thresholds(looks.steps(looks.BAD, (1, looks.GOOD)))
        .span(4)
        .height(5)
    )
    yield (
        panels.age(
            "Away before this start",
            "How long no relay had the store before this one started, and how much of that is lost:"
            " the sender's tries bridge 620 s.",
            asking.value(f"max ({of_relay('relay_downtime_seconds')})", "away"),
            asking.value(f"max ({of_relay('relay_downtime_lost_seconds')})", "lost"),
        )
        .thresholds(looks.steps(looks.PLAIN, (300, looks.DOUBTFUL), (620, looks.BAD)))
        .span(4)
        .height(5)
    )
    yield (
        panels.age(
            "Lost, not acknowledged",
            "Time away, before any start, that the sender's tries did not bridge:"
            " what was first sent in it has to be fetched from the video service by hand. 0 once"
            " every absence is acknowledged (relay absences list).",
            asking.value(f"sum ({of_relay('relay_unacknowledged_loss_seconds')})"),
        )
        .thresholds(looks.steps(looks.GOOD, (1, looks.BAD)))
        .span(4)
        .height(5)
    )
