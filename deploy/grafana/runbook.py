"""Links from the panels of the relay's dashboard to the sections of the runbook."""

from grafana_foundation_sdk.builders.dashboard import ConstantVariable, DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

ADDRESS = "http://127.0.0.1:9090/user/runbook.html"
"""Where deploy/compose has Prometheus serve deploy/prometheus/assets/runbook.html."""

ALERTS = {
    "Running": ["RelayDown"],
    "Not durable": ["RelayNotDurable"],
    "Time to acknowledge": ["RelayAcknowledgementsSlow"],
    "Oldest that waits": ["RelayBacklogOld"],
    "Sinks not active": ["RelaySinkParked", "RelaySinkPaused"],
    "Dead letters": ["RelayDeadLetters", "RelayDeadLettersForgotten"],
    "Free above the limit": ["RelayDiskFull", "RelayDiskFilling"],
    "Requests by answer": ["RelayNotDurable"],
    "Turned away by reason": ["RelaySignatureFailures", "RelayAllStale", "RelayBodiesRefused"],
    "Duplicates and oddities": [
        "RelayDuplicates",
        "RelayConflictingEvents",
        "RelayUnreadableEvents",
    ],
    "Time since the last event": ["RelayNoEvents"],
    "Verified, by secret": ["RelaySignatureFailures", "RelayPreviousSecretUsed"],
    "Clock difference to the sender": ["RelayClockSkew", "RelayAllStale"],
    "Kept during a rotation": ["RelayRotationUnfinished", "RelayQuarantineDropping"],
    "State of the sinks": ["RelaySinkParked", "RelaySinkPaused"],
    "Age of the oldest that waits": ["RelayBacklogOld"],
    "Store: size and room": ["RelayDiskFull", "RelayDiskFilling"],
    "Transactions": ["RelayNotReady"],
    "Running since": ["RelayRestarting"],
    "Last config in use": ["RelayConfigReloadFailed"],
    "Lost, not acknowledged": ["RelayEventsLost"],
}
"""By the panel's title, the alerts of which it shows the cause."""


def variable() -> ConstantVariable:
    """Keep the address in one place, where it can be changed for all panels."""
    return ConstantVariable("runbook").label("Runbook").value(ADDRESS)


def links(title: str) -> list[Builder[models.DashboardLink]]:
    """Make the links of a panel."""
    return [link(f"Runbook: {alert}", alert.lower()) for alert in ALERTS.get(title, [])]


def link(title: str, section: str) -> DashboardLink:
    """Lead to a section; as it is, for an encoded address would lead nowhere."""
    return (
        DashboardLink(title)
        .type(models.DashboardLinkType.LINK)
        .url(f"${{runbook:raw}}#{section}")
        .target_blank(True)
    )
