"""Declarations of views and actions; their signatures describe the parameters."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from relay.admin.page.downloads import Rows
from relay.admin.page.live import Topic
from relay.admin.page.visit import Context, Done


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A page at a path: `read(visit, parameters)` returns the values for the template.

    `parameters` is a struct, filled from path and query; a bad value is a 400.
    """

    path: str
    title: str
    template: str
    read: Callable[..., Awaitable[Context]]
    topics: Sequence[Topic] = ()
    """Changes that make an open page read itself again."""
    admin_only: bool = False
    """Whether it shows nothing but personal data."""
    is_form: bool = False
    """Whether it answers a POST, with parameters from path and form; it must change nothing."""

    @property
    def parameters(self) -> Any:
        return list(self.read.__annotations__.values())[1]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table as CSV: `read(visit, parameters)` yields its rows part by part, the names first.

    It is sent while it is read, so that it may have as many rows as the store.
    """

    path: str
    file: str
    read: Callable[..., AsyncIterator[Rows]]

    @property
    def parameters(self) -> Any:
        return list(self.read.__annotations__.values())[1]


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes as a file, which no browser opens: `read(visit, parameters)` returns them."""

    path: str
    file: str
    """Its name, with the path's parameters in braces."""
    read: Callable[..., Awaitable[bytes]]
    admin_only: bool = False

    @property
    def parameters(self) -> Any:
        return list(self.read.__annotations__.values())[1]


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Personal data as a file: `read(visit, parameters)` yields its parts, for a POST of admins.

    The fields of the form, which may be an address, stand in no URL.
    """

    path: str
    file: str
    read: Callable[..., AsyncIterator[bytes]]

    @property
    def parameters(self) -> Any:
        return list(self.read.__annotations__.values())[1]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A form's target: `perform(visit, path, form)` makes the change.

    `path` and `form` are structs; empty fields count as absent.
    """

    path: str
    perform: Callable[..., Awaitable[Done]]
    is_reading: bool = False
    """Set for a form that changes nothing; viewers may send it, so it checks the role itself."""

    @property
    def types(self) -> tuple[Any, Any]:
        _, of_path, of_form, *_ = self.perform.__annotations__.values()
        return of_path, of_form


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page: an entry of the navigation with its views."""

    name: str
    path: str
    key: str
    """Letter that opens it after `g`."""
    views: Sequence[View]
    actions: Sequence[Action] = ()
    tables: Sequence[Table] = ()
    downloads: Sequence[Download] = ()
    exports: Sequence[Export] = ()
