"""Panels about the relay itself: store, process, starts."""

from deploy.grafana.layout import line, row
from deploy.grafana.panels import bars, durations, levels, stat, table
from deploy.grafana.queries import came, quantile, rate, shared
from deploy.grafana.style import BAD, BLUE, DOUBTFUL, GOOD, ORANGE, PLAIN, SKY, YES_NO, steps

LAGS = "relay_loop_lag_seconds_bucket{RELAY}"
COMMITS = "relay_store_commit_seconds_bucket{RELAY}"
FILES = "max by (instance) (process_open_fds{RELAY} / process_max_fds{RELAY})"
LOST = shared("relay_unacknowledged_loss_seconds{RELAY}")
LIMITED = came("relay_connections_limited_total{RELAY}", "listener", "reason")

# fmt: off
PANELS = [
    *row("Store"),
    *line(8,
        levels("Store: size and room",
            {
                "{{namespace}} size": "max by (namespace) (relay_store_bytes{RELAY})",
                "{{instance}}: free": "max by (instance) (relay_store_free_bytes{RELAY})",
                "{{instance}}: must stay free":
                    "max by (instance) (relay_store_min_free_bytes{RELAY})",
                "{{instance}}: log": "max by (instance) (relay_store_log_bytes{RELAY})",
            },
            "bytes", colours={"/.*size/": BLUE, "/.*: free/": GOOD, "/.*must stay free/": BAD,
                "/.*: log/": ORANGE},
            alerts=["RelayDiskFull", "RelayDiskFilling"]),
        durations("Time of a transaction",
            {"half": quantile(0.5, COMMITS), "99 of 100": quantile(0.99, COMMITS)},
            colours={"half": SKY, "99 of 100": ORANGE}),
        levels("Transactions",
            {"{{instance}}": rate("relay_store_commit_seconds_count{RELAY}", "instance")}, "ops",
            alerts=["RelayNotReady"]),
    ),
    *row("Process"),
    *line(8,
        levels("Processor", {"{{instance}}": rate("process_cpu_seconds_total{RELAY}", "instance")},
            "percentunit"),
        durations("Wait for the event loop",
            {"half": quantile(0.5, LAGS), "99 of 100": quantile(0.99, LAGS)},
            colours={"half": SKY, "99 of 100": ORANGE}, alerts=["RelayEventLoopLate"]),
        levels("Memory",
            {"{{instance}}": "max by (instance) (process_resident_memory_bytes{RELAY})"}, "bytes"),
        levels("Open files and connections", {"{{instance}}": FILES}, "percentunit", max=1),
        bars("Limits on connections", {"{{listener}}: {{reason}}": LIMITED},
            noValue="no limit was reached"),
        bars("Log lines dropped",
            {"{{instance}}": came("relay_log_lines_dropped_total{RELAY}", "instance")},
            noValue="none was dropped", alerts=["RelayLogLinesDropped"]),
        widths=(4, 4, 4, 4, 4, 4),
    ),
    *line(5,
        table("What runs",
            {"instance": "Instance", "version": "Version", "revision": "Revision",
             "python": "Python", "sqlite": "SQLite", "postgres": "PostgreSQL"},
            "relay_build_info{RELAY}"),
        stat("Running since", "1000 * max (relay_start_time_seconds{RELAY})", "dateTimeFromNow",
            alerts=["RelayRestarting"]),
        stat("Last config in use", "min (relay_config_last_reload_successful{RELAY})", "none",
            mappings=YES_NO, thresholds=steps(BAD, (1, GOOD)), alerts=["RelayConfigReloadFailed"]),
        stat("Away before this start",
            {"away": "max (relay_downtime_seconds{RELAY})",
             "lost": "max (relay_downtime_lost_seconds{RELAY})"},
            "dtdurations", decimals=1, thresholds=steps(PLAIN, (300, DOUBTFUL), (620, BAD))),
        stat("Lost, not acknowledged",
            f"sum ({LOST})", "dtdurations", decimals=1,
            thresholds=steps(GOOD, (1, BAD)), alerts=["RelayEventsLost"]),
        widths=(8, 4, 4, 4, 4),
    ),
    *line(5,
        stat("Lost, not asked for",
            {"{{source}}": "max by (source) (relay_unreconciled_loss_seconds{SOURCE})"},
            "dtdurations", decimals=1, thresholds=steps(GOOD, (1, DOUBTFUL))),
        bars("Reconstructed events",
            {"{{event}}": came("relay_reconstructed_events_total{SOURCE}", "event")},
            noValue="nothing was reconstructed"),
        stat("Relays that share the store",
            {"{{state}}": "max by (state) (relay_members{RELAY})",
             "sinks without an owner": "max (relay_sinks_without_owner{RELAY})",
             "configs differ": "max (relay_members_configs_differ{RELAY})"},
            "none", noValue="one relay",
            alerts=["RelayMemberAway", "RelayConfigsDiffer", "RelaySinkWithoutOwner"]),
        widths=(6, 12, 6),
    ),
]
