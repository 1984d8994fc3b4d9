"""One reconciliation of one source: asks the sender's API, compares, and gives back."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from relay.core.api_settings import ApiSettings
from relay.core.clock import Clock
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.core.routing import Verdict
from relay.reconciliation import envelope, leads, library, reading
from relay.reconciliation.milestones import KnownMilestones, MilestoneDecision, derive
from relay.reconciliation.period import Period
from relay.reconciliation.reading import ReportProgress, ViewsFrom, subscription
from relay.reconciliation.report import About, RunReport
from relay.reconciliation.views import SentForm, ViewingHistory, ViewsRead
from relay.store import Store
from relay.store.reconstructions import (
    ReachedStep,
    ReadPosition,
    ReconstructionOutcome,
    Reconstructions,
    RunRecord,
)
from relay.video_service.api.client import Api
from relay.video_service.api.records import Video, Watched

Person = str
"""A folded address."""

Steps = Mapping[tuple[Person, str], Sequence[ReachedStep]]
"""What the store knows, by person and video."""

_OF_VIEWS = frozenset((VIDEO_WATCHED, LEAD_CAPTURED))
"""The kinds that the list of views tells; the list of videos tells the others."""


class Reconstruct(Protocol):
    """Makes an event, or only counts it in a dry run; raises StoreError."""

    async def __call__(self, event: Event, *, person: Person | None) -> ReconstructionOutcome: ...


class RunSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks and what it compares with."""

    name: str
    api: Api
    store: Reconstructions
    clock: Clock


class Reconciliation:
    """Reads everything first, then makes the events one by one."""

    def __init__(
        self,
        source: RunSource,
        period: Period,
        *,
        kinds: Collection[str],
        reconstruct: Reconstruct,
        report_progress: ReportProgress,
        report: RunReport,
    ) -> None:
        self._source = source
        self._api, self._store, self._clock = source.api, source.store, source.clock
        self._period = period
        self._kinds = frozenset(kinds)
        self._make = reconstruct
        self._report_progress = report_progress
        self._answers: dict[Person, Mapping[str, Watched]] = {}
        self._report = report
        self.place: ReadPosition | None = None
        """Where the next run may begin to read, once the views were read."""

    async def reconcile(self) -> None:
        """Raises ServiceApiError and StoreError; what was reconstructed before stays stored."""
        report, name = self._report, self._source.name
        listed = await self._videos()
        views = await self._views()
        read = views.read
        report.views, report.videos = read.views, len(listed or ())
        await self._refuse_erased(read)
        # From here on, an original that arrives keeps its reconstruction from being made.
        await self._store.announce(name)
        try:
            known = await self._steps(read)
            await self._reconstruct_milestones(read, known, is_whole=views.is_whole)
            await self._reconstruct_leads(read, known)
            if listed is not None:
                await self._reconstruct_changes(listed)
        finally:
            self._store.conclude(name)
        report.cannot_know("anonymous", count=read.anonymous)
        report.cannot_know("undated", count=read.undated)
        for form in read.forms_left:
            report.leave("form_recent", about=_about_form(form))
        self.place = views.place

    async def _videos(self) -> Sequence[Video] | None:
        """Return the list of videos; None if no kind needs it."""
        if self._kinds <= _OF_VIEWS:
            return None
        return await reading.videos(self._api, report_progress=self._report_progress)

    async def _views(self) -> ViewsFrom:
        """Return what the kinds need of the list of views."""
        if not self._kinds & _OF_VIEWS:
            return ViewsFrom(ViewsRead(), is_whole=True, place=None)
        place = await self._store.place(self._source.name)
        return await reading.views(
            self._api,
            self._period,
            kinds=self._kinds,
            place=place,
            report_progress=self._report_progress,
        )

    async def _refuse_erased(self, read: ViewsRead) -> None:
        """Drop what erased persons did, before the API is asked about anyone."""
        people = {person for person, _ in read.histories}
        forms = (*read.forms, *read.forms_left)
        people.update(who for form in forms if (who := leads.person_of(form)) is not None)
        erased = await self._store.erased(people)
        if not erased:
            return
        refused = [key for key in read.histories if key[0] in erased]
        self._report.erased += len(refused)
        for key in refused:
            del read.histories[key]
        before = len(read.forms)
        read.forms, read.forms_left = (
            [form for form in some if leads.person_of(form) not in erased]
            for some in (read.forms, read.forms_left)
        )
        self._report.erased += before - len(read.forms)

    async def _steps(self, read: ViewsRead) -> Steps:
        people: defaultdict[str, set[Person]] = defaultdict(set)
        for person, video in read.histories:
            people[video].add(person)
        for form in read.forms:
            who = leads.person_of(form)
            if who is not None:
                people[form.video or ""].add(who)
        known: dict[tuple[Person, str], Sequence[ReachedStep]] = {}
        for done, (video, persons) in enumerate(people.items()):
            self._report_progress("videos compared", done, len(people))
            steps = await self._store.steps(self._source.name, video, persons)
            known |= {(person, video): steps.get(person, ()) for person in persons}
        return known

    async def _reconstruct_milestones(
        self, read: ViewsRead, known: Steps, *, is_whole: bool
    ) -> None:
        report, source = self._report, self._source.name
        since_ms = await self._store.known_since_ms(source)
        for done, (key, history) in enumerate(read.histories.items()):
            self._report_progress("views compared", done, len(read.histories))
            # Acknowledgements come first: most decisions wait for nothing.
            await asyncio.sleep(0)
            steps = {step.step: step.at_ms for step in known.get(key, ())}
            milestones = KnownMilestones(steps=steps, since_ms=since_ms, is_whole=is_whole)
            decision = await self._derive(key, history, milestones)
            about = About(VIDEO_WATCHED, key[0], key[1], history.title)
            report.cannot_know(*decision.unsure, about=about)
            report.leave(*decision.left, about=about)
            for milestone in decision.reached:
                now_ms = self._clock.now_ms()
                event = envelope.watched(source, key[1], history, milestone, now_ms)
                await self._reconstruct(event, person=key[0])

    async def _derive(
        self, key: tuple[Person, str], history: ViewingHistory, known: KnownMilestones
    ) -> MilestoneDecision:
        """Ask the API about the person only if their views leave a doubt."""
        person, video = key
        if person not in self._answers:
            decision = derive(history, known, self._period)
            if not decision.in_doubt:
                return decision
            answer = await self._api.viewer(history.email)
            self._answers[person] = {each.video_id: each for each in answer}
            self._report.people_asked += 1
        watched = self._answers[person].get(video)
        return derive(history, replace(known, is_asked=True, watched=watched), self._period)

    async def _reconstruct_leads(self, read: ViewsRead, known: Steps) -> None:
        report = self._report
        for form in read.forms:
            if leads.person_of(form) is None:
                report.cannot_know("lead_without_address", about=_about_form(form))
        for form in leads.forms_without_lead(read.forms, known, give_up_ms=self._period.give_up_ms):
            event = envelope.lead(self._source.name, form, self._clock.now_ms())
            outcome = await self._reconstruct(event, person=leads.person_of(form))
            report.leads_without_fields += outcome == "accepted" and not form.submission.fields

    async def _reconstruct_changes(self, listed: Sequence[Video]) -> None:
        report, name, now_ms = self._report, self._source.name, self._clock.now_ms()
        comparison = library.compare(
            listed,
            await self._store.library(name),
            self._period,
            now_ms=now_ms,
            forgotten_ms=await self._store.forgotten_ms(),
        )
        for doubt in comparison.unsure:
            if doubt.kind in self._kinds:
                report.cannot_know(doubt.reason, about=_about_video(doubt))
        for doubt in comparison.left:
            if doubt.kind in self._kinds:
                report.leave(doubt.reason, about=_about_video(doubt))
        for change in comparison.changes:
            if change.kind in self._kinds:
                await self._reconstruct(envelope.changed(name, change, now_ms), person=None)

    async def _reconstruct(self, event: Event, *, person: Person | None) -> ReconstructionOutcome:
        outcome = await self._make(event, person=person)
        self._report.note(event, outcome)
        return outcome


def _about_form(form: SentForm) -> About:
    lead = form.submission.id
    return About(LEAD_CAPTURED, leads.person_of(form), form.video, form.title, lead)


def _about_video(doubt: library.Doubt) -> About:
    return About(doubt.kind, video=doubt.video.id, title=doubt.video.title)


async def reconcile(
    record: RunRecord,
    settings: ApiSettings,
    period: Period,
    *,
    events: Collection[str],
    store: Store,
    clock: Clock,
    report: RunReport,
    verdicts: Callable[[Event], Sequence[Verdict]],
    stored: Callable[[Event, Sequence[Verdict], ReconstructionOutcome], None],
    report_progress: ReportProgress,
) -> ReadPosition | None:
    """Reconcile a period and fill in the report; return where the next run starts to read.

    Only kinds that the endpoint receives are given back; `events` narrows them if it has any.
    `verdicts` finds the sinks of an event, and `stored` is called with each outcome on disk.
    Raises ServiceApiError and StoreError; what was reconstructed before stays in the store.
    """
    reconstructions = store.reconstructions

    async def reconstruct(event: Event, *, person: Person | None) -> ReconstructionOutcome:
        if record.dry_run:
            return "accepted"
        wanted = verdicts(event)
        return await reconstructions.accept(
            event, wanted, person=person, stored=lambda outcome: stored(event, wanted, outcome)
        )

    async with Api(settings, budgets=store.request_budgets, clock=clock) as api:
        source = RunSource(name=record.source, api=api, store=reconstructions, clock=clock)
        receives = await subscription(api, settings.endpoint)
        kinds = report.choose(receives.kinds, receives.unknown, requested=events)
        run = Reconciliation(
            source,
            period,
            kinds=kinds,
            reconstruct=reconstruct,
            report_progress=report_progress,
            report=report,
        )
        await run.reconcile()
        return run.place
