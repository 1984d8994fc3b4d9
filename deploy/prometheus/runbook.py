"""Makes assets/runbook.html from docs/runbook.md, for Prometheus to serve beside its alerts.

There it is available while the relay is down; the relay's own page has its text as a template.
Run it after every edit of the runbook: `python -m deploy.prometheus.runbook`.
"""

from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

SOURCE = Path(__file__).parents[2] / "docs" / "runbook.md"
TARGET = Path(__file__).parent / "assets" / "runbook.html"
TEMPLATE = SOURCE.parents[1] / "relay" / "admin" / "page" / "templates" / "runbook_text.html"

_PAGE = """\
<!doctype html>
<!-- Made by deploy/prometheus/runbook.py of docs/runbook.md: edit that one. -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runbook of the relay</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; }}
h2 {{ margin-top: 3rem; border-top: 1px solid #8888; padding-top: 1rem; }}
h2:target {{ border-top: 4px solid #D55E00; }}
pre, code {{ font-family: ui-monospace, monospace; font-size: 0.9em; }}
pre {{ overflow-x: auto; padding: 0.75rem; background: #8882; }}
table {{ display: block; overflow-x: auto; border-collapse: collapse; }}
th, td {{ padding: 0.25rem 0.75rem; border: 1px solid #8886; text-align: left; }}
nav {{ columns: 14rem; font-size: 0.9rem; }}
</style>
</head>
<body>
{body}</body>
</html>
"""


def page(runbook: str) -> str:
    """Render the runbook as a page of its own."""
    return _PAGE.format(body=body(runbook))


def template(runbook: str) -> str:
    """Render the runbook as a part of the relay's page."""
    return f"{{% raw %}}\n{body(runbook)}{{% endraw %}}\n"


def body(runbook: str) -> str:
    """Render the runbook, with a list of its sections after its title."""
    markdown = MarkdownIt("commonmark").enable("table")
    title, *rest = _sections(markdown.parse(runbook))
    names = [_name(section) for section in rest]
    contents = "".join(f'<a href="#{name.lower()}">{name}</a><br>\n' for name in names)
    parts = [_html(markdown, title), f"<nav>\n{contents}</nav>\n"]
    for name, section in zip(names, rest, strict=True):
        section[0].attrSet("id", name.lower())
        # Grafana links by an alert's name; GitHub and the rules link in lower case.
        parts += [f'<a id="{name}"></a>\n', _html(markdown, section)]
    return "".join(parts)


def _sections(tokens: list[Token]) -> list[list[Token]]:
    """Split before each heading of the second level; the first part is the introduction."""
    sections: list[list[Token]] = [[]]
    for token in tokens:
        if token.type == "heading_open" and token.tag == "h2":
            sections.append([])
        sections[-1].append(token)
    return sections


def _name(section: list[Token]) -> str:
    _, inline, *_ = section
    return inline.content


def _html(markdown: MarkdownIt, tokens: list[Token]) -> str:
    for token in tokens:
        if token.children:
            token.children = list(_within_the_page(token.children))
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _within_the_page(tokens: list[Token]) -> Iterator[Token]:
    """Drop links to the repository's files, which Prometheus does not serve."""
    leads_out = False
    for token in tokens:
        if token.type == "link_open":
            leads_out = not str(token.attrGet("href")).startswith("#")
        if not (leads_out and token.type in {"link_open", "link_close"}):
            yield token


if __name__ == "__main__":
    text = SOURCE.read_text(encoding="utf-8")
    TARGET.write_text(page(text), encoding="utf-8")
    TEMPLATE.write_text(template(text), encoding="utf-8")
