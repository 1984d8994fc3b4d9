"""Declarations of what the page serves; the functions' signatures describe the parameters."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from relay.admin.page.live import Topic
from relay.admin.page.visit import ActionResult


class PageRoute(msgspec.Struct, frozen=True):
    """A path of the page."""

    path: str

    @property
    def method(self) -> str:
        return "GET"


class _Reading(PageRoute, frozen=True):
    """A path whose `read(visit, parameters)` takes a struct of path and query, else a 400."""

    read: Callable[..., Any]

    @property
    def parameters(self) -> Any:
        return list(self.read.__annotations__.values())[1]


class PageView(_Reading, frozen=True):
    """A page: `read` returns the values for the template."""

    title: str
    template: str
    topics: Sequence[Topic] = ()
    """Changes that make an open page read itself again."""
    admin_only: bool = False
    """Whether it shows nothing but personal data."""
    is_form: bool = False
    """Whether it answers a POST, with parameters from path and form; it must change nothing."""

    @property
    def method(self) -> str:
        return "POST" if self.is_form else "GET"


class CsvTable(_Reading, frozen=True):
    """A table as CSV: `read` yields its rows part by part, the names first.

    It is sent while it is read, so that it may have as many rows as the store.
    """

    file: str


class Download(_Reading, frozen=True):
    """Bytes as a file, which no browser opens: `read` returns them."""

    file: str
    """Its name, with the path's parameters in braces."""
    admin_only: bool = False


class Export(_Reading, frozen=True):
    """Personal data as a file: `read` yields its parts, for a POST of admins.

    The fields of the form, which may be an address, stand in no URL.
    """

    file: str

    @property
    def method(self) -> str:
        return "POST"


class Action(PageRoute, frozen=True):
    """A form's target: `perform(visit, path, form)` makes the change.

    `path` and `form` are structs; empty fields count as absent.
    """

    perform: Callable[..., Awaitable[ActionResult]]
    is_reading: bool = False
    """Set for a form that changes nothing; viewers may send it, so it checks the role itself."""

    @property
    def method(self) -> str:
        return "POST"

    @property
    def types(self) -> tuple[Any, Any]:
        _, of_path, of_form, *_ = self.perform.__annotations__.values()
        return of_path, of_form


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page: an entry of the navigation, and what it serves, its first view first."""

    name: str
    path: str
    key: str
    """Letter that opens it after `g`."""
    routes: Sequence[PageRoute]
