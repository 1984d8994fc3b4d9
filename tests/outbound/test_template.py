"""Templates: what they can say, what is escaped, and how their mistakes read."""

import pytest

from relay.core import sample_events
from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.outbound.template import LOOPS_MAX, OUTPUT_MAX, Template, escaping, opens_with


def braces(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def event(data: bytes = b'{"name":"A & <B>","n":3,"none":null,"list":[1,"x"],"on":true}') -> Event:
    return Event(
        source="main",
        id="evt_1",
        kind="lead.captured",
        created_at="then",
        received_ms=0,
        body=b'{"id":"evt_1","event":"lead.captured","createdAt":"then","data":' + data + b"}",
    )


def failure(source: str, of: Event | None = None) -> InvalidTemplate:
    with pytest.raises(InvalidTemplate) as caught:
        Template(source, write=escaping(braces)).render(of or event())
    return caught.value


def test_a_template_speaks_of_the_envelope_and_the_source() -> None:
    template = Template("{{ source }} {{ event }} {{ id }} {{ createdAt }} {{ data.n + 1 }}")
    assert template.render(event()) == "main lead.captured evt_1 then 4"


def test_a_source_in_the_body_does_not_shadow_ours() -> None:
    forged = Event(
        source="main", id="1", kind="k", created_at=None, received_ms=0, body=b'{"source":"forged"}'
    )
    assert Template("{{ source }}|{{ data }}").render(forged) == "main|"


def test_null_is_nothing_and_what_is_not_text_is_json() -> None:
    template = Template("{{ data.none }}|{{ data.on }}|{{ data.list }}|{{ 1.5 }}")
    assert template.render(event()) == '|true|[1,"x"]|1.5'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b>{{ data.name }}", "<b>A &amp; &lt;B>"),
        ("{{ '<' ~ data.name }}", "&lt;A &amp; &lt;B>"),
        ("{{ data.name | upper }}", "A &amp; &lt;B>"),
        ("{{ '<' }}", "&lt;"),
        ("{% set who %}<i>{{ data.name }}{% endset %}{{ who }}", "&lt;i>A &amp; &lt;B>"),
        ("{% set hi %}It is {% endset %}{{ hi ~ data.name }}", "It is A &amp; &lt;B>"),
        ("{% set hi %}It is %s{% endset %}{{ hi % data.name }}", "It is A &amp; &lt;B>"),
        ("{% set hi %}It is {}{% endset %}{{ hi.format(data.name) }}", "It is A &amp; &lt;B>"),
        ("{% set hi %}It is X{% endset %}{{ hi | replace('X', '&') }}", "It is &amp;"),
        ("{% set x %}, {% endset %}{{ ['<', '&'] | join(x) }}", "&lt;, &amp;"),
        ("{% macro it(v) %}<i>{{ v }}{% endmacro %}{{ it(data.name) }}", "&lt;i>A &amp; &lt;B>"),
        (
            "{% macro it() %}<i>{{ caller() }}{% endmacro %}{% call it() %}<b>{% endcall %}",
            "&lt;i>&lt;b>",
        ),
        ("{% filter upper %}<i>{{ data.name }}{% endfilter %}", "&lt;I>A &amp; &lt;B>"),
        (
            "{% for c in ['<', ['&']] recursive %}{{ c if c is string else loop(c) }}{% endfor %}",
            "&lt;&amp;",
        ),
        ("{% block it %}<i>{{ data.name }}{% endblock %}", "<i>A &amp; &lt;B>"),
        ("{{ data.list | tojson ~ '<' }}", '[1,"x"]&lt;'),
        ("{{ [data.name, '<'] | join(', ') }}", "A &amp; &lt;B>, &lt;"),
        ("{% for c in data.name[:3] %}{{ c }}{% endfor %}", "A &amp;"),
    ],
)
def test_every_expression_is_escaped_exactly_once(source: str, expected: str) -> None:
    assert Template(source, write=escaping(braces)).render(event()) == expected


@pytest.mark.parametrize("name", ["safe", "e", "escape", "forceescape", "urlize", "xmlattr"])
def test_filters_that_bypass_the_escaping_do_not_exist(name: str) -> None:
    assert str(failure(f"{{{{ data.name | {name} }}}}")) == f"line 1: No filter named '{name}'."


def test_without_escaping_json_can_be_written() -> None:
    assert Template("{{ data.list | tojson }}").render(event()) == '[1,"x"]'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\n{% if x", "line 2: unexpected end of template, expected 'end of statement block'."),
        ("{{ data.name | shout }}", "line 1: No filter named 'shout'."),
        (
            "{% autoescape true %}{{ data.name }}{% endautoescape %}",
            "autoescape: values are always escaped for their context",
        ),
        (
            "a\n{{ dta.name }}",
            (
                "line 2: no such name: dta; "
                "there are createdAt, data, event, id, reconstructed, source"
            ),
        ),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "it is nested too deeply"),
    ],
)
def test_a_mistake_is_named_with_its_line_before_anything_is_rendered(
    source: str, expected: str
) -> None:
    with pytest.raises(InvalidTemplate) as caught:
        Template(source)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "a\nb\n{{ data.nope }}",
            "line 3: nope is missing in this event: write | default('') where it may be",
        ),
        ("{{ data.name.first.letter }}", "line 1: first is missing in this event: write"),
        ("{{ data.name.__class__ }}", "line 1: it uses something that templates may not"),
        ("{{ data.n / 0 }}", "line 1: it fails with ZeroDivisionError"),
        ("{% include 'other' %}", "line 1: it fails with TypeError"),
        ("{{ data.list.append(1) }}", "line 1: it uses something that templates may not"),
    ],
)
def test_a_failure_on_an_event_is_named_with_its_line(source: str, expected: str) -> None:
    assert str(failure(source)).startswith(expected)


def test_a_default_replaces_a_missing_value() -> None:
    assert Template("{{ data.budget | default('-') }}").render(event()) == "-"


@pytest.mark.parametrize(
    "source",
    [
        "{{ data[data.email] }}",
        "{{ data.email + 1 }}",
        "{{ data.email | int / 0 }}",
        "{{ {}[data.email].x }}",
        "{{ data.email | attr(data.email) }}",
        "{{ '%d' | format(data.email) }}",
    ],
)
def test_no_failure_repeats_a_value_of_the_event(source: str) -> None:
    error = failure(source, event(b'{"email":"ada@example.com"}'))
    assert "ada" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(4000) %}{{ 'x' * 20 }}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ '█' * data.many }}",
        "{{ [0] * data.many }}",
        "{{ 9 ** data.many }}",
    ],
)
def test_an_output_beyond_the_cap_fails_and_says_the_cap(source: str) -> None:
    assert str(OUTPUT_MAX) in str(failure(source, event(b'{"many":1000000000000}')))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(5001) %}{% endfor %}",
        "{% for i in range(5001) if false %}{% endfor %}",
        "{% for i in range(80) %}{% for k in range(80) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in range(5001) %}{% endfor %}{% endmacro %}{{ m() }}",
        "{% for i in [range(5001)] recursive %}{{ loop(i) if i is iterable }}{% endfor %}",
    ],
)
def test_loops_that_run_too_often_fail_and_say_the_limit(source: str) -> None:
    assert f"its loops run more than {LOOPS_MAX} times" in str(failure(source))


def test_each_event_has_all_runs_of_the_loops_for_itself() -> None:
    template = Template("{{ id }}{% for i in range(3000) %}{% endfor %}")
    names = [sample_events.event("lead.captured", event_id=str(each)) for each in range(3)]
    assert [template.render(each) for each in names] == ["0", "1", "2"]


def test_a_loop_knows_its_length_and_its_condition() -> None:
    template = Template(
        "{% for i in range(9) if i is odd %}{{ loop.index }} of {{ loop.length }}"
        "{{ '' if loop.last else ', ' }}{% endfor %}{% for i in [] %}{% else %}.{% endfor %}"
    )
    assert template.render(event()) == "1 of 4, 2 of 4, 3 of 4, 4 of 4."


def test_ordinary_arithmetic_and_repetition_work() -> None:
    template = Template("{{ '█' * data.n }}{{ 2 ** 8 * 1.5 }} {{ 3000000 * 3000000 }}")
    assert template.render(event()) == "███384.0 9000000000000"


@pytest.mark.parametrize("source", ["", "plain", "{{ data.name }}\n", "{# note #}"])
def test_a_valid_template_renders_for_every_sample(source: str) -> None:
    template = Template(source)
    assert template.render(sample_events.event("lead.captured")) is not None


def test_the_cached_attributes_of_a_kind_are_right_for_every_kind_and_source() -> None:
    template = Template("{{ source }}/{{ event }}")
    events = [
        sample_events.event(kind, source=source, event_id=number)
        for number in ("1", "2")
        for kind in ("video.ready", "lead.captured")
        for source in ("main", "other")
    ]
    assert [f"{each.source}/{each.kind}" for each in events] == [
        template.render(each) for each in events
    ]


def test_attributes_that_differ_within_a_kind_are_written_anew() -> None:
    first, second = (
        sample_events.event("video.ready", source="main", event_id=id_) for id_ in "ab"
    )
    for source in ("{{ event }} {{ id }}", "{{ event }} {{ data.id }} {{ id }}"):
        assert Template(source).render(first) != Template(source).render(second)


def test_every_event_gets_its_own_random_choice() -> None:
    template = Template("{{ range(1000) | random }} {{ event }}")
    sample = sample_events.event("video.ready", source="main", event_id="a")
    assert len({template.render(sample) for _ in range(9)}) > 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ data.name }}",
        "{{ data['name'] | lower }}.x",
        "{{ data.name | default(source) }}",
        "{{ source ~ data.name }}",
        "{# a comment #}{{ data.name }}",
        "{% if event == 'x' %}relay{% else %}{{ data.name }}{% endif %}",
        "{% if event == 'x' %}relay.{% endif %}{{ data.name }}",
        "{% for each in data.fields %}{{ each }}{% endfor %}",
        "{% set name = data.name %}{{ name }}",
        "{% set name %}{{ data.name }}{% endset %}{{ name }}",
        "{% with name = data.name %}{{ name }}{% endwith %}",
        "{% filter lower %}{{ data.name }}{% endfilter %}",
    ],
)
def test_an_output_that_can_begin_with_data_is_known_beforehand(source: str) -> None:
    assert opens_with(source, "data")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "relay",
        "relay.{{ data.name }}",
        "{{ event }}.{{ data.name }}",
        "{{ source }}",
        "{% if data.name %}a{% else %}b{% endif %}",
        "{% set name = 'relay' %}{{ source }}.{{ data.name }}",
        "{{ data.name",
        "{% nothing %}",
    ],
)
def test_an_output_that_cannot_begin_with_data_is_known_beforehand(source: str) -> None:
    assert not opens_with(source, "data")
