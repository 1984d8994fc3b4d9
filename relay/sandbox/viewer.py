"""One viewer of the population: which video it watches, how far, and what it does there."""

from collections.abc import Iterator
from functools import partial
from random import Random

from relay.sandbox.model import Part, Person, Session, Video, Workspace
from relay.sandbox.people import Character
from relay.sandbox.schedule import Schedule
from relay.sandbox.viewing import Viewing, Visit

_HOUR_S = 3600.0
_ARRIVAL_S = 6 * _HOUR_S
_RETURN = 0.55
"""How probable it is that a visit goes on with a video that was left."""
_ANOTHER = 0.3
"""How probable it is that another video follows at once."""
_RESUBMISSION = 0.15
"""How probable it is that a form is filled in again a little later."""
_REWIND_S = 5.0
"""A video that was left goes on this far before where it was left."""
_FIELDS = (
    ("company", ("Northwind & Sons", "Umbrella Studio", "Contoso GmbH", "Atelier 12")),
    ("jobTitle", ("Head of Marketing", "CTO", "Product Manager", "Sales Development Rep")),
    ("teamSize", ("1-10", "11-50", "51-200", "more than 200")),
    ("message", ("Please call me next week.", "Do you offer a trial?\nWe are a team of nine.")),
    ("newsletter", (True, False)),
)
_LINKS = (
    ("Book a demo", "https://www.example.com/demo"),
    ("See the prices", "https://www.example.com/pricing"),
    ("Read more", "https://www.example.com/blog"),
)
_CAMPAIGNS: tuple[dict[str, str], ...] = (
    {},
    {"source": "newsletter", "medium": "email", "campaign": "spring"},
    {"source": "newsletter", "medium": "email", "campaign": "onboarding"},
    {"source": "search", "medium": "cpc", "campaign": "brand"},
    {"source": "social", "medium": "post", "campaign": "stories"},
)
_PAGES = ("", "videos", "pricing", "blog")


class Viewer:
    """A person who visits, watches, leaves and comes back, by the schedule."""

    def __init__(
        self,
        person: Person,
        character: Character,
        *,
        workspace: Workspace,
        schedule: Schedule,
        viewing: Viewing,
        random: Random,
    ) -> None:
        self._person = person
        self._character = character
        self._workspace = workspace
        self._schedule = schedule
        self._viewing = viewing
        self._random = random
        self._left_at: dict[str, float] = {}
        """Where each video was left, in seconds, by its id."""

    def remember(self, session: Session) -> None:
        """Know where a view of an earlier run was left."""
        self._left_at[session.video] = session.parts[-1][1] if session.parts else 0.0

    def start(self) -> None:
        """Come for the first time, within some hours."""
        self._schedule.after(self._random.uniform(0, _ARRIVAL_S), self._visit)

    def _visit(self) -> None:
        video = self._choice()
        if video is None:
            self._leave()
            return
        session = self._viewing.begin(
            video.id,
            Visit(
                person=self._person.id,
                country=self._person.country,
                device=self._person.device,
                page=f"https://www.example.com/{self._random.choice(_PAGES)}",
                utm=self._random.choice(_CAMPAIGNS),
            ),
        )
        self._go_on(session, self._steps(session))

    def _choice(self) -> Video | None:
        """Return a video that was left unfinished, or another one."""
        ready = [
            video
            for video in self._workspace.videos.values()
            if video.status == "ready" and not video.trashed
        ]
        left = [video for video in ready if 0 < self._left_at.get(video.id, 0) < video.duration_s]
        if left and self._random.random() < _RETURN:
            return self._random.choice(left)
        unseen = [video for video in ready if video.id not in self._left_at]
        return self._random.choice(unseen or left or ready) if ready else None

    def _go_on(self, session: Session, steps: Iterator[Part | float]) -> None:
        """Take the next step of a view: a part to watch, or a pause in seconds."""
        step = next(steps, None)
        if session.ended_ms is not None:  # by a control of the sandbox
            self._leave()
        elif step is None:
            self._viewing.end(session.id)
            self._leave()
        elif isinstance(step, float):
            self._schedule.after(step, partial(self._go_on, session, steps))
        else:
            then = partial(self._go_on, session, steps)
            self._viewing.watch(session.id, *step, then=then)

    def _leave(self) -> None:
        random = self._random
        if random.random() < _ANOTHER:
            self._schedule.after(random.uniform(5, 60), self._visit)
        else:
            wait_s = _HOUR_S / 2 + random.expovariate(1 / self._character.pause_s)
            self._schedule.after(wait_s, self._visit)

    def _steps(self, session: Session) -> Iterator[Part | float]:
        """Yield the steps of a view; clicks and forms happen between the steps."""
        random = self._random
        duration_s = session.duration_s
        position_s = self._beginning(session)
        form_after = self._form_after()
        yield random.uniform(0.5, 3)
        while position_s < duration_s:
            if form_after <= 0:
                self._submit(session)
                form_after = 0.0 if random.random() < _RESUBMISSION else 2.0
            end_s = min(duration_s, position_s + duration_s * random.uniform(0.08, 0.4))
            yield position_s, end_s
            form_after -= (end_s - position_s) / duration_s
            position_s = self._left_at[session.video] = end_s
            if random.random() > self._character.persistence:
                return
            if random.random() < 0.1:
                self._click(session)
            if random.random() < 0.2:
                yield random.uniform(5, 120)
            position_s = self._seek(position_s, duration_s)

    def _beginning(self, session: Session) -> float:
        left_s = self._left_at.get(session.video, 0.0)
        if left_s >= session.duration_s:
            return 0.0
        return max(0.0, left_s - _REWIND_S)

    def _seek(self, position_s: float, duration_s: float) -> float:
        """Go on from here, or skip ahead, or look at a part again."""
        chance = self._random.random()
        if chance < 0.1:
            return min(duration_s, position_s + duration_s * self._random.uniform(0.05, 0.2))
        if chance < 0.18:
            return max(0.0, position_s - duration_s * self._random.uniform(0.05, 0.15))
        return position_s

    def _form_after(self) -> float:
        """Return the share of the video after which a form is filled in; beyond 1 for none."""
        character = self._character
        if character.acquaintance == "anonymous":
            return 2.0
        is_new = character.acquaintance == "tells" and self._person.email is None
        probability = 0.35 if is_new else 0.04
        return self._random.uniform(0, 0.7) if self._random.random() < probability else 2.0

    def _submit(self, session: Session) -> None:
        random = self._random
        chosen = sorted(random.sample(range(len(_FIELDS)), k=random.randint(1, len(_FIELDS))))
        fields = {_FIELDS[index][0]: random.choice(_FIELDS[index][1]) for index in chosen}
        self._viewing.submit(
            session.id, email=self._character.address, name=self._person.name, fields=fields
        )

    def _click(self, session: Session) -> None:
        label, url = self._random.choice(_LINKS)
        self._viewing.click(session.id, label, url)
