"""Templates: what they can say, what is escaped, and how their mistakes read."""

import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.outbound.template import (
    Rendering,
    Template,
    escaping,
    is_template,
    literal_prefix,
    opens_with,
)
from relay.outbound.template_environment import (
    GROWN_MAX,
    GROWN_TOTAL_MAX,
    LOOPS_MAX,
    OUTPUT_MAX,
)


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
                "there are createdAt, data, event, id, received, reconstructed, source, watched"
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


@pytest.mark.parametrize(
    "path",
    ["budget", "budget.most", "budget['most'].in.euros", "none.a.b", "list[7].name", "budget[:3]"],
)
def test_a_default_replaces_what_is_missing_anywhere_on_a_path(path: str) -> None:
    assert Template(f"{{{{ data.{path} | default('-') }}}}").render(event()) == "-"
    assert "is missing in this event" in str(failure(f"{{{{ data.{path} }}}}"))


@pytest.mark.parametrize(
    ("text", "literal"), [("a{{ b", "a"), ("{% c", ""), ("a{#", "a"), ("{ a } }}", "{ a } }}")]
)
def test_a_text_with_a_mark_is_a_template(text: str, literal: str) -> None:
    assert is_template(text) is (text != literal)
    assert literal_prefix(text) == literal


def test_a_template_knows_when_the_event_came_and_what_its_person_has_watched() -> None:
    template = Template(
        "{{ received }}{% for each in watched.watched | default([]) %}"
        " {{ each.title | default(each.id) }}{% endfor %}"
    )
    came = replace(event(), received_ms=1_772_443_800_000)
    assert template.render(came) == "2026-03-02T09:30:00.000Z"
    seen = replace(came, watch_history=sample_events.WATCHED)
    assert template.render(seen).endswith("Z Product tour in four minutes vid_untitled")


def test_the_templates_of_one_message_share_its_limits() -> None:
    first, second = Template("{{ data.x }}"), Template("{{ event }}")
    message = Rendering(event(b'{"x":"%b"}' % (b"x" * (OUTPUT_MAX - 5))))
    first.fill(message)
    for _ in range(2):  # written anew, and as it is known
        with pytest.raises(InvalidTemplate, match=str(OUTPUT_MAX)):
            second.fill(message)
        assert second.render(event()) == second.fill(Rendering(event())) == "lead.captured"
    looping = Template("{{ id }}{% for i in range(3000) %}{% endfor %}")
    message = Rendering(event())
    looping.fill(message)
    with pytest.raises(InvalidTemplate, match="its loops run more than"):
        looping.fill(message)


@pytest.mark.parametrize(
    ("source", "is_personal"),
    [
        ("{{ data.email }}", True),
        ("{% set d = data %}{{ d.email }}", True),
        ("{{ watched.videos }}", True),
        ("{{ id }} {{ received }} {{ createdAt }}", False),
        ("data", False),
    ],
)
def test_a_template_knows_whether_it_may_write_of_a_person(source: str, is_personal: bool) -> None:
    assert Template(source).is_personal is is_personal


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


METHODS = ("clear", "copy", "get", "items", "keys", "pop", "update", "values")


@pytest.mark.parametrize("name", METHODS)
def test_a_field_is_data_whatever_methods_its_holder_has(name: str) -> None:
    fields = event(b'{"fields":{"%s":"ACME"}}' % name.encode())
    assert Template(f"{{{{ data.fields.{name} }}}}").render(fields) == "ACME"
    assert Template(f"{{{{ '{{0.{name}}}'.format(data.fields) }}}}").render(fields) == "ACME"
    assert Template(f"{{{{ [data.fields] | join(attribute='{name}') }}}}").render(fields) == "ACME"
    called = Template(
        "{% for name, value in data.fields.items() %}{{ name }}={{ value }}{% endfor %}"
    )
    assert called.render(fields) == f"{name}=ACME"


@pytest.mark.parametrize("name", METHODS)
def test_a_field_that_is_missing_is_no_method(name: str) -> None:
    fields = event(b'{"fields":{}}')
    assert Template(f"{{{{ data.fields.{name} | default('-') }}}}").render(fields) == "-"
    for source in (
        f"{{{{ data.fields.{name} }}}}",
        f"{{{{ data.fields['{name}'] }}}}",
        f"{{{{ data.fields.{name} ~ '.' }}}}",
        f"{{{{ data.fields.{name} | string }}}}",
        f"{{{{ data.fields | attr('{name}') }}}}",
        f"{{{{ '{{0.{name}}}'.format(data.fields) }}}}",
        f"{{{{ '%s' % data.fields.{name} }}}}",
        f"{{{{ [data.fields] | join(attribute='{name}') }}}}",
        f"{{{{ [data.fields] | map(attribute='{name}') | first }}}}",
    ):
        assert "is missing in this event" in str(failure(source, fields)), source


@pytest.mark.parametrize(
    "source",
    [
        "{{ range }}",
        "{{ lipsum }}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{% for i in [1] %}{{ loop }}{% endfor %}",
        "{{ cycler('a') }}",
        "{{ joiner() }}",
        "{{ data.list | map('string') }}",
        "{{ data.list | select }}",
        "{{ data | items }}",
    ],
)
def test_what_has_no_text_is_never_output(source: str) -> None:
    assert "it outputs what has no text" in str(failure(source))


def test_methods_macros_and_loops_are_called_as_ever() -> None:
    template = Template(
        "{% macro m(v) %}{{ v.upper() }}{% endmacro %}{{ m(data.name) }}"
        "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{{ loop.index }}{% endfor %}"
        "{% set ns = namespace(n=1) %}{{ ns.n }}{{ data.list.index('x') }}{{ 'a-b'.split('-')[1] }}"
        "{{ data['list'].count(1) }}{{ data.get('none', 1) }}"
    )
    assert template.render(event()) == "A & <B>a1b2a311b1"


HUGE = b'{"n":1000000000,"w":"1000000000","x":"%b","list":[%b]}' % (
    b"<a " * 300_000,
    b"[1]," * 20_000 + b"[1]",
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x'.ljust(data.n) | length }}",
        "{{ 'x'.rjust(data.n) | length }}",
        "{{ 'x'.center(data.n) | length }}",
        "{{ '7'.zfill(data.n) | length }}",
        "{{ '\t'.expandtabs(data.n) | length }}",
        "{{ 'x' | center(data.n) | length }}",
        "{{ 'x' | center(width=data.n) | length }}",
        "{{ ('%0*d' % (data.n, 1)) | length }}",
        "{{ ('%.*f' % (data.n, 1)) | length }}",
        "{{ ('%s %*d' % ('a', data.n, 1)) | length }}",
        "{{ '%*d' | format(data.n, 1) | length }}",
        "{{ ('%' ~ data.w ~ 'd') % 1 }}",
        "{{ ('%(n)' ~ data.w ~ 'd') % data }}",
        "{{ '{:{}}'.format(1, data.n) | length }}",
        "{{ '{:{}}'.format(1, data.w) | length }}",
        "{{ '{0:{1.n}}'.format(1, data) | length }}",
        "{{ '{0:{1[n]}}'.format(1, data) | length }}",
        "{{ '{x:{n}}'.format_map(data) | length }}",
        "{{ ('{:' ~ data.w ~ '}').format(1) | length }}",
        "{{ ('{0}' * 9).format(data.x) | length }}",
        "{{ (('%s' * 9) % ((data.x,) * 9)) | length }}",
        "{{ 'x' | indent(data.n, first=true) | length }}",
        "{{ data.x | indent(data.x, first=true) | replace('', data.x) | length }}",
        "{{ data.x | replace('<', data.x) | length }}",
        "{{ data.x.replace('', data.x) | length }}",
        "{{ data.x.join(data.x) | length }}",
        "{{ data.x | join(data.x) | length }}",
        "{{ data.x | map('lower') | join(data.x) | length }}",
        "{{ ('<' * 60000).translate({60: data.x}) | length }}",
        "{{ data.x | wordwrap(1, true, data.x) | length }}",
        "{{ data.x | wordwrap(1, wrapstring=data.x) | length }}",
        "{{ data.x | replace(' ', '') | wordwrap(1) | length }}",
        "{{ data.x | replace('a', '>') | striptags | length }}",
        "{{ data.list | sum(start=[]) | length }}",
        "{{ [1] | batch(data.n, 0) | list | length }}",
        "{{ [1] | slice(data.n) | list | length }}",
        "{{ 1.5 | round(data.n, 'ceil') }}",
        "{{ lipsum(data.n) | length }}",
        "{{ lipsum(n=1, max=data.n, min=data.n - 1) | length }}",
        "{{ data.n.to_bytes(data.n, 'big') | length }}",
        "{{ (data.x ~ data.x ~ data.x ~ data.x ~ data.x) | length }}",
        "{{ (data.x + data.x + data.x + data.x + data.x) | length }}",
        "{% set n = namespace(x='x') %}{% for _ in range(64) %}{% set n.x = n.x~n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for _ in range(64) %}{% set n.x = n.x+n.x %}{% endfor %}",
    ],
)
def test_no_value_of_an_event_decides_how_much_is_made(source: str) -> None:
    assert str(GROWN_MAX) in str(failure(source, event(HUGE)))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(5000) %}{% set x = 'x'.ljust(4000000) %}{% endfor %}",
        "{% block b %}{% for i in range(80) %}{{ ''.ljust(4000000)[0] }}{% endfor %}{% endblock %}",
        "{{ data.x | list | map('replace', '<', data.x) | join | length }}",
    ],
)
def test_all_that_one_rendering_makes_is_bounded(source: str) -> None:
    assert str(GROWN_TOTAL_MAX) in str(failure(source, event(HUGE)))


def test_what_templates_usually_make_is_within_the_bounds() -> None:
    long = "x" * 60_000
    template = Template(
        "{{ 'a'.ljust(3) }}|{{ '%-5s|%5.1f' % ('b', 2) }}|{{ '{:>4}'.format('c') }}|"
        "{{ 'one two' | wordwrap(3) }}|{{ data.x | wordwrap(79) | truncate(9) }}|"
        "{{ 'a\nb' | indent(2) }}|{{ (data.x ~ data.x) | truncate(7) }}|{{ 2.55 | round(1) }}|"
        "{{ [[1], [2]] | sum(start=[]) }}|{{ data.x | striptags | length }}|{{ 100 % 7 }}|"
        "{{ '100 %% of %d' % 3 }}|{{ '{0} {0}'.format('d') }}|{{ 1 + 2 }}|{{ [1] + [2] }}|"
        "{{ lipsum(1, false, 3, 4) is string }}"
    )
    assert template.render(event(b'{"x":"%b"}' % long.encode())) == (
        "a  |b    |  2.0|   c|one\ntwo|xxxxxx...|a\n  b|xxxx...|2.5|[1,2]|60000|2|"
        "100 % of 3|d d|3|[1,2]|true"
    )


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
