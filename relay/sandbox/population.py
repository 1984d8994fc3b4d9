"""The population: seeded viewers, and the team whose videos they watch.

All that they do follows from the seed and the schedule; each has random numbers of its own, so
that what a control does to one changes nothing for the others.
"""

from random import Random

from relay.sandbox import people
from relay.sandbox.library import Library
from relay.sandbox.model import Workspace
from relay.sandbox.schedule import Schedule
from relay.sandbox.team import Team
from relay.sandbox.viewer import Viewer
from relay.sandbox.viewing import Viewing

VIEWERS_MAX = 10_000
VIDEOS_MAX = 1000


class Population:
    """The people of a workspace; those of an earlier run go on from where they were."""

    def __init__(
        self, workspace: Workspace, schedule: Schedule, *, viewing: Viewing, library: Library
    ) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._viewing = viewing
        self._team = Team(workspace, schedule, library)

    def start(self, *, viewers: int, videos: int) -> None:
        """Add videos to a library that never had any, and let viewers come, if there are any."""
        self._team.fill(videos)
        if viewers:
            self._team.start(videos=videos)
        views = len(self._workspace.sessions)
        arriving = {
            (person_id := f"per_{index + 1:04d}"): self._viewer(index, person_id, views=views)
            for index in range(viewers)
        }
        for session in self._workspace.sessions.values():
            viewer = arriving.get(session.person or "")
            if viewer is not None:
                viewer.remember(session)
        for viewer in arriving.values():
            viewer.start()

    def _viewer(self, index: int, person_id: str, *, views: int) -> Viewer:
        """Return a viewer; `views` gives those of a later run other random numbers."""
        seed = self._workspace.seed
        person, character = people.person(seed, index, person_id=person_id)
        person = self._workspace.people.setdefault(person_id, person)
        return Viewer(
            person,
            character,
            workspace=self._workspace,
            schedule=self._schedule,
            viewing=self._viewing,
            random=Random(f"{seed} viewer {index} {views}"),
        )
