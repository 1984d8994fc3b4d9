"""The filter bar of views: what it offers, and what it says is filled in."""

from relay.admin.page.filter_bar import Field, fixed_chips, same
from tests.admin.page.visiting import Visitor

FILTERED = {
    "/events": "kind=lead.*",
    "/dead-letters": "kind=lead.*",
    "/changes": "operation=reload_config",
    "/audience": "source=main",
}
"""Views with a filter bar, with a filter of each."""


def offered(field: Field) -> list[str]:
    return list(field.options)


def test_a_value_outside_the_choices_can_still_be_chosen() -> None:
    field = Field(name="sink", label="Sink", value="removed", choices=same(["crm"]))
    assert offered(field) == ["crm", "removed"]
    assert offered(Field(name="sink", label="Sink", value="crm", choices=same(["crm"]))) == ["crm"]


def test_a_chip_shows_the_words_of_a_value_and_none_is_for_a_default() -> None:
    fields = (
        Field(name="change", label="Change", value="pause", choices={"pause": "Paused …"}),
        Field(name="video", label="Video", value="vid_1", words="Tour"),
        Field(name="zone", label="Time zone", value="UTC", default="UTC"),
        Field(name="kind", label="Kind"),
    )
    assert [(chip.name, chip.value) for chip in fixed_chips(fields)] == [
        ("change", "Paused …"),
        ("video", "Tour"),
    ]


async def test_each_chip_drops_its_filter_and_one_link_drops_all(visitor: Visitor) -> None:
    for path, query in FILTERED.items():
        page = await visitor.see(f"{path}?{query}")
        (form,) = (each for each in page.all("form") if "data-filter" in each.attributes)
        assert form["action"] == path
        assert form.all("button")[0].text == "Filter"
        (chip,) = page.by_id("chips").all("a", class_="chip")
        for url in (chip["href"], page.by_id("chips").links()["Drop all"]):
            assert url.partition("?")[0] == path
            assert not (await visitor.see(url)).has_id("chips"), url


async def test_parameters_that_are_not_filters_stay_when_all_filters_are_dropped(
    visitor: Visitor,
) -> None:
    page = await visitor.see("/audience?period=7d&source=main")
    assert page.by_id("chips").links()["Drop all"] == "/audience?period=7d"
