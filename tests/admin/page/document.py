"""A page of HTML as tests read it: elements by tag, id and class, with their texts."""

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Self

_VOID = {"meta", "link", "input", "br", "hr", "img"}


class Element:
    """An element; texts have their white space folded."""

    def __init__(self, tag: str, attributes: dict[str, str | None], parent: Self | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attributes[name] or ""

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    @property
    def raw_text(self) -> str:
        return "".join(each if isinstance(each, str) else each.raw_text for each in self.children)

    @property
    def text(self) -> str:
        return " ".join(self.raw_text.split())

    def all(self, tag: str | None = None, *, class_: str | None = None) -> "list[Element]":
        """All elements within, in order."""
        return [
            each
            for each in self._walk()
            if tag in (None, each.tag) and (class_ is None or class_ in each.classes)
        ]

    def by_id(self, id_: str) -> "Element":
        (found,) = (each for each in self._walk() if each.attributes.get("id") == id_)
        return found

    def has_id(self, id_: str) -> bool:
        return any(each.attributes.get("id") == id_ for each in self._walk())

    def links(self) -> dict[str, str]:
        """Targets of the links by their texts."""
        return {each.text: each["href"] for each in self.all("a")}

    def rows(self) -> list[list[str]]:
        """Texts of the cells of a table's body."""
        return [[cell.text for cell in row.all("td")] for row in self.all("tr") if row.all("td")]

    def fields(self) -> dict[str, str]:
        """Values of a form's inputs."""
        return {each["name"]: each.attributes.get("value") or "" for each in self.all("input")}

    def form(self, action: str) -> "Element":
        """The first form to a path."""
        return next(each for each in self.all("form") if each["action"].partition("?")[0] == action)

    def _walk(self) -> Iterator["Element"]:
        for each in self.children:
            if isinstance(each, Element):
                yield each
                yield from each._walk()


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self._at = Element("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), self._at)
        self._at.children.append(element)
        if tag not in _VOID:
            self._at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._at.children.append(Element(tag, dict(attrs), self._at))

    def handle_endtag(self, tag: str) -> None:
        assert self._at.tag == tag, f"<{self._at.tag}> is closed by </{tag}>"
        assert self._at.parent is not None
        self._at = self._at.parent

    def handle_data(self, data: str) -> None:
        self._at.children.append(data)


def parse(html: str) -> Element:
    """Read a page; fails if an element is not closed where it should be."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser.root is parser._at, "an element is never closed"
    return parser.root
