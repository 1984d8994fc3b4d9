"""The view of the config, its reload, and the rotation of a secret, on a running relay."""

from pathlib import Path

import pytest

from relay import config as config_module
from relay.core.errors import StoreUnavailable
from tests import service
from tests.admin.page.document import Element
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN, visiting
from tests.admin.test_api import body, send
from tests.brokers.authority import Authority
from tests.caller import SECRET, post, signed
from tests.operator import TOKEN, operating
from tests.service import ENVIRON, Relay

ROTATION = "/config/sources/main/rotation"
NEW_SECRET = "the-new-secret-of-the-tests"
HOSTILE = "<img src=x onerror=alert(2)>"
HOOK = "https://crm.example/hook"


def rewrite(folder: Path, old: str, new: str) -> None:
    file = folder / "config.toml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def settings(page: Element, table: str) -> dict[str, str]:
    pairs = page.by_id(f"settings-{table}")
    keys, values = pairs.all("dt"), pairs.all("dd")
    return {key.text: value.text for key, value in zip(keys, values, strict=True)}


def unknown_to_the_relay(content: bytes) -> bytes:
    header = ("Service-Signature", signed(content, secret=NEW_SECRET))
    return post(content, header, sign=False)


async def audited(relay: Relay) -> list[tuple[str, int, str]]:
    async with operating(relay) as operator:
        changes = (await operator.get("/audit"))["changes"]
    return [(each["operation"], each["status"], each["via"]) for each in changes]


async def test_the_running_config_is_shown_without_secrets(tmp_path: Path) -> None:
    tables = ADMIN + service.SINK.format(
        name="crm", url="https://user:pw@crm.example/hook?key=k3y", more='events = ["lead.*"]'
    )
    config = service.read(tmp_path, tables=tables)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        await send(relay, body("a"))
        page = await visitor.see("/config")
        running = page.by_id("running").text
        assert "relay 0." in running
        assert "Python 3." in running
        assert "SQLite 3." in running
        assert str(tmp_path / "config.toml") in page.by_id("reload").text
        assert "as of the start" in page.by_id("reload").text
        (source,) = (row for row in page.rows() if row[0].startswith("main"))
        assert source[0] == "main /webhooks · Service-Signature, within 5 min"
        assert source[1:5] == ["1 no end", source[2], "\N{EN DASH}", source[4]]
        assert source[2].endswith(("ago", "now"))
        assert page.links()["crm"] == "/sinks/crm"
        assert "takes lead.*" in page.by_id("sink-crm").text
        assert "takes events" in page.by_id("store").text
        admin = settings(page, "admin")
        assert (admin["admin.token"], admin["admin.viewer_token"]) == ("set", "set")
        assert settings(page, "server")["server.ack_timeout"] == "5.0 s · default"
        assert settings(page, "store")["store.min_free"] == "1.0 MiB"
        for secret in (SECRET, TOKEN, VIEWER_TOKEN, "k3y", "pw@"):
            assert secret not in visitor.html


async def test_the_senders_api_is_shown_without_its_key(tmp_path: Path) -> None:
    service.read(tmp_path, tables=ADMIN)
    rewrite(
        tmp_path,
        'secrets = ["env:RELAY_SECRET"]',
        'secrets = ["env:RELAY_SECRET"]\n[source.api]\nbase_url = "https://api.example.com"\n'
        'key = "env:OTHER_SECRET"\nendpoint = "wh_01"\nfields = { "video.id" = "uid" }',
    )
    config = config_module.load(tmp_path / "config.toml", ENVIRON)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        page = await visitor.see("/config")
        assert settings(page, "source.main.api") == {
            "source.main.api.base_url": "https://api.example.com",
            "source.main.api.key": "set",
            "source.main.api.endpoint": "wh_01",
            "source.main.api.fields": "video.id: uid",
            "source.main.api.give_up_after": "11 min 20 s · default",
        }
        assert ENVIRON["OTHER_SECRET"] not in visitor.html
        await visitor.see(ROTATION)
        assert "relay rotate run --source main" in visitor.html


async def test_the_way_out_is_a_table_of_its_own_and_no_key_of_the_others(tmp_path: Path) -> None:
    service.read(tmp_path, tables=ADMIN + service.SINK.format(name="crm", url=HOOK, more=""))
    rewrite(
        tmp_path,
        "[admin]",
        '[outbound]\nproxy_url = "http://relay:k3y@proxy.example:3128"\nno_proxy = "crm.example"\n'
        "[admin]",
    )
    config = config_module.load(tmp_path / "config.toml", ENVIRON)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        assert settings(await visitor.see("/config"), "outbound") == {
            "outbound.proxy_url": "http://proxy.example:3128/…",
            "outbound.no_proxy": "crm.example",
            "outbound.proxy_from_environment": "false · default",
        }
        assert "k3y" not in visitor.html
        await visitor.see("/sinks/crm")
        assert "outbound" not in visitor.html


async def test_secrets_are_shown_with_labels_and_ends(tmp_path: Path) -> None:
    service.read(tmp_path, tables=ADMIN)
    rewrite(
        tmp_path,
        'secrets = ["env:RELAY_SECRET"]',
        'secrets = ["env:RELAY_SECRET", { secret = "env:OTHER_SECRET", label = "2019", '
        "until = 2020-01-01 }]",
    )
    config = config_module.load(tmp_path / "config.toml", ENVIRON)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        page = await visitor.see("/config")
        (row,) = (row for row in page.rows() if row[0].startswith("main"))
        assert row[1].startswith("1 no end 2019 ended")
        assert page.by_id("source-main").all("span", class_="bad")
        assert ENVIRON["OTHER_SECRET"] not in visitor.html


async def test_a_reload_says_what_has_changed(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        reload = (await visitor.see("/config")).form("/config/reload")
        page = await visitor.submit(reload)
        assert page.by_id("notice").text == "The config was reloaded: nothing is different."
        rewrite(tmp_path, "[[source]]", '[[sink]]\nname = "out"\ntype = "stdout"\n[[source]]')
        page = await visitor.submit(reload)
        assert page.by_id("notice").text == "The config was reloaded: added sink.out."
        assert "as of its last reload" in page.by_id("reload").text
        assert page.has_id("sink-out")
        assert await audited(relay) == [("reload_config", 200, "page")] * 2


async def test_a_refused_reload_shows_every_fault_until_it_is_fixed(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        reload = (await visitor.see("/config")).form("/config/reload")
        rewrite(tmp_path, "[store]", f'max_body = "{HOSTILE}"\nack_timeout = 7\n[store]')
        page = await visitor.submit(reload)
        notice = page.by_id("notice")
        assert "bad" in notice.classes
        assert "The new config was refused; nothing has changed." in notice.text
        assert "server.max_body: expected" in notice.text
        page = await visitor.see("/config")
        assert "The config was refused" in page.by_id("reload-title").text
        keys = [each.text for each in page.by_id("reload").all("code")]
        assert keys[:2] == ["server.max_body", "server.ack_timeout"]
        assert page.all("img") == []
        rewrite(tmp_path, f'max_body = "{HOSTILE}"\nack_timeout = 7\n', "")
        page = await visitor.submit(reload)
        assert "as of its last reload" in page.by_id("reload-title").text
        assert await audited(relay) == [
            ("reload_config", 200, "page"),
            ("reload_config", 422, "page"),
        ]


async def test_a_secret_is_rotated_without_loss(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        page = await visitor.see(
            (await visitor.see("/config")).links()["Rotate the secret… of main"]
        )
        assert "No rotation" in page.by_id("state").text
        assert "No rotation is running." in page.form(f"{ROTATION}/finish").text
        page = await visitor.submit(page.form(f"{ROTATION}/begin"))
        assert "armed" in page.by_id("state").text
        assert "Requests that match no secret of main are kept until" in page.by_id("notice").text
        assert (await relay.ask(unknown_to_the_relay(body("a")))).status == 401
        page = await visitor.see(ROTATION)
        assert [each.text for each in page.by_id("vitals").all("dd")][:1] == ["1"]
        rewrite(tmp_path, '"env:RELAY_SECRET"', f'"{NEW_SECRET}"')
        page = await visitor.submit(page.form(f"{ROTATION}/finish"))
        assert page.by_id("notice").text == (
            "The rotation of main is finished: 1 of 1 kept requests verified."
        )
        assert relay.stored() == 1
        assert [each[0] for each in await audited(relay)] == ["finish_rotation", "begin_rotation"]
        changes = await visitor.see("/changes")
        assert changes.rows()[0][2] == "1 kept request verified"
        assert NEW_SECRET not in visitor.html


async def test_a_rotation_that_cannot_finish_says_why_where_its_form_is(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        form = (await visitor.see(ROTATION)).form(f"{ROTATION}/finish")
        page = await visitor.submit(form)
        assert page.by_id("notice").text.startswith("No rotation of main is running")
        assert page.has_id("steps-title")
        await visitor.submit(page.form(f"{ROTATION}/begin"))
        rewrite(tmp_path, "[store]", "max_body = 1\n[store]")
        page = await visitor.submit(form)
        assert "server.max_body" in page.by_id("notice").text
        assert "armed" in page.by_id("state").text


@pytest.mark.parametrize(
    ("minutes", "status"), [("0", 303), ("61", 303), ("1.5", 303), ("", 303), ("60", 303)]
)
async def test_a_rotation_takes_1_to_60_minutes(tmp_path: Path, minutes: str, status: int) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        form = (await visitor.see(ROTATION)).form(f"{ROTATION}/begin")
        answer = await visitor.post(form["action"], {**form.fields(), "minutes": minutes})
        assert answer.status_code == status
        page = await visitor.see(ROTATION)
        is_valid = minutes in ("", "60")
        assert page.by_id("state").text.startswith("armed" if is_valid else "No rotation")


async def test_an_unknown_source_has_no_rotation(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        page = await visitor.see("/config/sources/nobody/rotation", status=404)
        assert "There is no source nobody" in page.text
        await visitor.see("/config?x=1", status=400)


async def test_viewers_see_the_config_and_change_nothing(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay:
        async with visiting(relay, token=VIEWER_TOKEN) as viewer:
            for path in ("/config", ROTATION):
                page = await viewer.see(path)
                actions = {
                    each["action"] for each in page.all("form") if "action" in each.attributes
                }
                assert actions == {"/find", "/logout"}
        assert await audited(relay) == []


async def test_certificates_are_shown_with_their_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca").file
    more = f'ca_file = "{authority}"'
    sink = service.SINK.format(name="crm", url="https://crm.example", more=more)
    config = service.read(tmp_path, tables=ADMIN + sink)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        (row,) = (row for row in (await visitor.see("/config")).rows() if row[0] == "crm ca_file")
        assert row[2] == "1"
        assert "ends in" in row[3]
        authority.unlink()
        (row,) = (row for row in (await visitor.see("/config")).rows() if row[0] == "crm ca_file")
        assert row[3] == "cannot be read: No such file or directory"


async def test_a_store_that_cannot_be_read_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> object:
        raise StoreUnavailable("the disk does not answer")

    config = service.read(tmp_path, tables=ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        monkeypatch.setattr(relay.service._store, "backlogs", broken)
        page = await visitor.see("/config")
        assert "cannot be read: the disk does not answer" in page.by_id("store").text
        assert settings(page, "log")["log.level"] == "info · default"
