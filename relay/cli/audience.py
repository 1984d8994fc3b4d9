"""`relay audience`: tables of viewers and leads for marketing."""

from collections.abc import Iterator
from typing import Any, get_args

import click

from relay.cli.client import AdminClient, JsonObject, RelayTarget, connected, relay_options
from relay.cli.output import Output, moment, safe, table
from relay.cli.parameters import json_option, moment_option, name_option
from relay.cli.selection import until_option
from relay.core import csv_table
from relay.core.setting_errors import suggestion
from relay.core.units import number
from relay.store.audience import FORMS, STEPS, Funnel, Grouping, csv_rows

_ROWS_MAX = 10_000
_TITLE_CHARS = 48
_MEANT_MAX = 5

_NUMBERS = tuple(name.upper() for name in (*STEPS, FORMS))
_HEADS = {
    "video": ("TITLE", "VIDEO"),
    "day": ("DAY ({zone})",),
    "hour": ("HOUR ({zone})",),
    "source": ("SOURCE",),
}
_TOTAL = "all"
_NO_VIDEO = "(none named)"


@click.command()
@moment_option("since", 'Received since: "30d" ago, "yesterday", a date or a Unix time.')
@until_option
@name_option("source", "Of this source.")
@click.option("--video", metavar="ID", help="Of this video.")
@click.option(
    "--by",
    type=click.Choice(get_args(Grouping)),
    default="video",
    show_default=True,
    help="One row per video, day, hour of the day or source.",
)
@click.option(
    "--zone", metavar="NAME", help="Time zone of days or hours, as Europe/Berlin; default UTC."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for a spreadsheet.")
@relay_options
@json_option
def audience(
    *, target: RelayTarget, as_json: bool, as_csv: bool, by: Grouping, **query: Any
) -> None:
    """Count viewers by milestone, and leads; each person counts once.

    A person is an e-mail address; LEADS counts people, FORMS the forms that they sent.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other: give one of them")
    with connected(target) as client:
        report = client.get("/audience", {**query, "by": by, "limit": _ROWS_MAX})
        hints = [] if report["groups"] else list(_unknown(client, query["video"]))
    lines = _csv(report, by) if as_csv else _table(report, by, query["zone"] or "UTC")
    Output(report, lines).print(as_json=as_json)
    if not as_json:
        for note in (*hints, *_omissions(report, by)):
            click.echo(note, err=True)


def _unknown(client: AdminClient, video: str | None) -> Iterator[str]:
    """Say that no counted event names the video, and which one may be meant."""
    if video is None:
        return
    groups = client.get("/audience", {"by": "video", "limit": _ROWS_MAX})["groups"]
    titles = {group["video"]: safe(group["title"] or "") for group in groups if group["video"]}
    if video in titles:
        return
    meant = [key for key, title in titles.items() if video.casefold() in title.casefold()]
    if not meant:
        near = suggestion(video, titles)
        yield f"No counted event names the video {safe(video)}{near}."
    for key in meant[:_MEANT_MAX]:
        yield f"--video takes an ID: {titles[key]} is {safe(key)}."


def _table(report: dict[str, Any], by: str, zone: str) -> Iterator[str]:
    names = [head.format(zone=zone) for head in _HEADS[by]]
    lines = [[*_names(group, by), *_numbers(group["steps"])] for group in report["groups"]]
    if lines:
        lines.append([_TOTAL, *[""] * (len(names) - 1), *_numbers(report["total"])])
    rows = [dict(zip((*names, *_NUMBERS), line, strict=True)) for line in lines]
    yield from table(rows, empty="No viewers and no leads yet.")
    if rows:
        yield "\nPeople count once in each figure, so the last line is not the sum."


def _names(group: dict[str, Any], by: str) -> tuple[str, ...]:
    if by == "hour":
        return (f"{group['hour']:02}",)
    if by != "video":
        return (group[by],)
    title = safe(group["title"] or "-")
    if len(title) > _TITLE_CHARS:
        title = title[: _TITLE_CHARS - 1] + "…"
    return (title, group["video"] or _NO_VIDEO)


def _numbers(steps: list[dict[str, Any]]) -> list[str]:
    figures = [*(step["people"] for step in steps), steps[-1]["events"]]
    return [number(figure).rjust(len(head)) for figure, head in zip(figures, _NUMBERS, strict=True)]


def _csv(report: JsonObject, by: Grouping) -> list[str]:
    # What a terminal would interpret is escaped.
    rows = csv_rows(by, report.convert(Funnel), safe)
    return csv_table.text(rows, line_end="\n").splitlines()


def _omissions(report: dict[str, Any], by: str) -> Iterator[str]:
    anonymous = sum(step["anonymous"] for step in report["total"])
    if anonymous:
        yield f"Views and forms without an address, not counted as people: {number(anonymous)}"
    if report["left_out"]:
        shown = number(_ROWS_MAX)
        yield f"Only {shown} {by}s are shown; narrow the period with --since or --until."
    if report["counted_until_ms"] is not None:
        until = moment(report["counted_until_ms"])
        yield f"Counted up to {until}; later events are still being counted, so try again later."
