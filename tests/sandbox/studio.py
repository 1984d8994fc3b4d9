"""A workspace whose clock is stepped, without endpoints: events are only noted."""

from typing import Any

from relay.sandbox.library import Library
from relay.sandbox.model import Person, Session, Workspace
from relay.sandbox.schedule import Schedule
from relay.sandbox.viewing import Viewing, Visit
from tests.conftest import NOW_MS
from tests.sandbox.stepped_clock import SteppedClock


class Studio:
    """The parts of a sandbox that viewers need."""

    def __init__(self, *, speed: float = 1, workspace: Workspace | None = None) -> None:
        self.workspace = workspace or Workspace()
        self.clock = SteppedClock(NOW_MS)
        self.schedule = Schedule(self.clock, speed=speed)
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.library = Library(self.workspace, self.schedule, self)
        self.viewing = Viewing(self.workspace, self.schedule, self)

    def publish(self, kind: str, data: dict[str, Any]) -> str:
        self.events.append((self.clock.now_ms(), kind, data))
        return f"evt_{len(self.events)}"

    def video(self, *, duration_s: float, title: str = "Tour") -> str:
        return self.library.add(title=title, duration_s=float(duration_s)).id

    def person(self) -> Person:
        person = Person(
            id=self.workspace.new_id("per"), name="Eve", email=None, country="FR", device="mobile"
        )
        self.workspace.people[person.id] = person
        return person

    async def run(self, seconds: float) -> None:
        """Let real seconds pass."""
        await self.schedule.run_until(self.clock.now_ms() + round(seconds * 1000))

    async def view(self, video: str, visit: Visit, part: tuple[float, float]) -> Session:
        """Watch one part in a view of its own."""
        session = self.viewing.begin(video, visit)
        self.viewing.watch(session.id, *part)
        await self.run((part[1] - part[0]) / self.schedule.speed)
        self.viewing.end(session.id)
        return session

    def kinds(self) -> list[str]:
        """The kinds of events that viewers caused, in order."""
        return [kind for _, kind, _ in self.events if kind in {"video.watched", "lead.captured"}]

    def published(self, kind: str) -> list[dict[str, Any]]:
        return [data for _, each, data in self.events if each == kind]

    def watched(self) -> list[tuple[str, int]]:
        """The milestones published, with their times."""
        return [
            (data["milestone"], at_ms)
            for at_ms, kind, data in self.events
            if kind == "video.watched"
        ]
