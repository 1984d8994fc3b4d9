import asyncio

import httpx
import orjson
import pytest

from relay.core import sample_events
from tests.sandbox.service import MEDIA, Served, serving
from tests.stub_server import DEADLINE_S, StubServer

pytestmark = pytest.mark.servers


async def create(served: Served, *, size: int) -> tuple[str, dict[str, object]]:
    answer = await served.ask("POST", "/v1/videos/uploads", json={**MEDIA, "size": size})
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert document["upload"]["method"] == "PUT"
    return document["video"]["id"], document["upload"]


async def status(served: Served, video: str) -> str:
    answer = await served.ask("GET", f"/v1/videos/{video}")
    return str(answer.json()["video"]["status"])


async def put(served: Served, upload: dict[str, object], content: bytes) -> int:
    # No bearer key: the URL is the secret.
    answer = await served.client.put(
        str(upload["url"]),
        content=content,
        headers=upload["headers"],  # type: ignore[arg-type]
    )
    return answer.status_code


async def test_an_upload_takes_three_steps_and_processing_waits_for_the_last() -> None:
    async with serving() as served:
        video, upload = await create(served, size=5)
        assert await put(served, upload, b"12345") == 200
        await served.step(3600)
        assert await status(served, video) == "uploading"
        answer = await served.ask("POST", f"/v1/videos/{video}/complete")
        assert answer.json()["video"]["status"] == "processing"
        assert answer.json()["video"]["durationSeconds"] is None
        await served.step(3600)
        assert await status(served, video) == "ready"


async def test_an_upload_cannot_be_completed_before_the_file_arrived_or_twice() -> None:
    async with serving() as served:
        video, upload = await create(served, size=5)
        assert (await served.ask("POST", f"/v1/videos/{video}/complete")).status_code == 409
        assert await put(served, upload, b"12345") == 200
        assert (await served.ask("POST", f"/v1/videos/{video}/complete")).status_code == 200
        assert await put(served, upload, b"12345") == 403
        assert (await served.ask("POST", f"/v1/videos/{video}/complete")).status_code == 409


async def test_an_upload_demands_the_exact_headers_and_the_exact_size(served: Served) -> None:
    _, upload = await create(served, size=5)
    assert await put(served, {**upload, "headers": {}}, b"12345") == 403
    wrong = {**upload, "headers": {**upload["headers"], "Content-Type": "video/webm"}}  # type: ignore[dict-item]
    assert await put(served, wrong, b"12345") == 403
    assert await put(served, upload, b"1234") == 400
    assert await put(served, upload, b"123456") == 400
    assert await put(served, upload, b"12345") == 200


@pytest.mark.parametrize("speed", [1, 60])
async def test_an_upload_url_is_valid_for_six_hours(speed: float) -> None:
    async with serving(speed=speed) as served:
        _, early = await create(served, size=1)
        _, late = await create(served, size=1)
        await served.step(6 * 3600 / speed - 1)
        assert await put(served, early, b"1") == 200
        await served.step(2)
        assert await put(served, late, b"1") == 403


async def test_a_file_is_video_or_audio_of_at_most_20_gb(served: Served) -> None:
    for change, code in (
        ({"type": "text/html"}, 415),
        ({"size": 20 * 2**30 + 1}, 413),
        ({"size": 0}, 422),
        ({"type": "audio/mpeg"}, 201),
    ):
        body = {**MEDIA, "size": 20 * 2**30, **change}
        answer = await served.ask("POST", "/v1/videos/uploads", json=body)
        assert answer.status_code == code, answer.text


@pytest.mark.parametrize(
    ("media_type", "code"),
    [
        ("video/mp4; codecs=avc1", 201),
        ('video/mp4;codecs="avc1.42E01E, mp4a.40.2"', 201),
        ("VIDEO/MP4", 201),
        ("Audio/Mpeg", 201),
        ("video/vnd.dlna.mpeg-tts", 201),
        ("video/vnd.example!one_2#a$b&c^d+xml", 201),
        ("Text/HTML", 415),
        ("video", 422),
        ("video/", 422),
        ("video/mp4; codecs", 422),
        ("video/mp4\n", 422),
        ("video/mp4\r\nX-Other: 1", 422),
        ("vidéo/mp4", 422),
    ],
)
async def test_every_legal_media_type_of_video_or_audio_is_taken(
    media_type: str, code: int, served: Served
) -> None:
    body = {**MEDIA, "size": 3, "type": media_type}
    answer = await served.ask("POST", "/v1/videos/uploads", json=body)
    assert answer.status_code == code, answer.text
    if code == 201:
        assert await put(served, answer.json()["upload"], b"123") == 200


async def refused_put(served: Served, *lines: str, body: bytes = b"") -> bytes:
    """Send a whole PUT to a dead upload URL before reading; return the refusal."""
    url = httpx.URL(served.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = "\r\n".join(("PUT /storage/dead HTTP/1.1", "Host: localhost", *lines, "", ""))
    writer.write(head.encode() + body)
    await writer.drain()
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.readuntil(b"}}")
    writer.close()
    return answer


async def test_an_early_refusal_of_a_large_file_reaches_the_client(served: Served) -> None:
    body = bytes(8 * 2**20)
    lines = "Connection: close", f"Content-Length: {len(body)}"
    answer = await refused_put(served, *lines, body=body)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"The upload URL is not valid" in answer


async def test_a_client_that_waits_for_100_continue_is_refused_at_once(served: Served) -> None:
    answer = await refused_put(served, "Expect: 100-continue", "Content-Length: 8388608")
    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_parts_are_resumed_and_completed(served: Served) -> None:
    part_size = 16 * 2**20
    video, _ = await create(served, size=2 * part_size + 7)
    answer = await served.ask("POST", f"/v1/videos/{video}/multipart")
    assert answer.status_code == 201
    assert answer.json()["partSize"] == part_size
    parts = answer.json()["parts"]
    assert [part["size"] for part in parts] == [part_size, part_size, 7]
    assert await put(served, parts[2]["upload"], b"1234567") == 200
    assert await put(served, parts[0]["upload"], bytes(part_size)) == 200
    left = (await served.ask("POST", f"/v1/videos/{video}/multipart/resume")).json()
    assert [part["number"] for part in left["arrived"]] == [1, 3]
    assert [part["number"] for part in left["missing"]] == [2]
    path = f"/v1/videos/{video}/multipart/complete"
    assert (await served.ask("POST", path)).status_code == 409
    assert await put(served, parts[1]["upload"], bytes(part_size)) == 403
    assert await put(served, left["missing"][0]["upload"], bytes(part_size)) == 200
    assert (await served.ask("POST", path)).json()["video"]["status"] == "processing"


async def test_parts_are_begun_once_and_not_beside_a_whole_file(served: Served) -> None:
    video, upload = await create(served, size=5)
    path = f"/v1/videos/{video}/multipart"
    assert (await served.ask("POST", f"{path}/resume")).status_code == 409
    assert await put(served, upload, b"12345") == 200
    assert (await served.ask("POST", path)).status_code == 409
    other, _ = await create(served, size=5)
    path = f"/v1/videos/{other}/multipart"
    assert (await served.ask("POST", path)).status_code == 201
    assert (await served.ask("POST", path)).status_code == 409


async def test_only_a_ready_video_is_replaced_or_trimmed_and_only_shortened(served: Served) -> None:
    video, _ = await create(served, size=5)
    for path, body, code in (
        (f"videos/{video}/replace", {}, 409),
        (f"videos/{video}/trim", {"durationSeconds": 1}, 409),
        (f"videos/{(await served.add())['id']}/trim", {"durationSeconds": 90_000}, 422),
    ):
        answer = await served.client.post(f"/sandbox/{path}", json=body)
        assert answer.status_code == code


async def test_an_import_is_processed_at_once_and_limited_to_30_a_minute(served: Served) -> None:
    body = {"url": "https://files.example.com/spring%20tour.mp4"}
    answer = await served.ask("POST", "/v1/videos/import", json=body)
    assert answer.status_code == 201
    assert answer.json()["video"]["title"] == "spring tour.mp4"
    assert answer.json()["video"]["status"] == "processing"
    for _ in range(29):
        assert (await served.ask("POST", "/v1/videos/import", json=body)).status_code == 201
    refused = await served.ask("POST", "/v1/videos/import", json=body)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "60"
    await served.step(60)
    assert (await served.ask("POST", "/v1/videos/import", json=body)).status_code == 201


@pytest.mark.parametrize(
    ("path", "name"), [("", "files.example.com"), ("download?id=7", "download")]
)
async def test_a_link_without_an_ending_is_imported_as_a_video(path: str, name: str) -> None:
    async with serving() as served:
        url = f"https://files.example.com/{path}"
        answer = await served.ask("POST", "/v1/videos/import", json={"url": url})
        assert answer.status_code == 201
        video = answer.json()["video"]
        assert (video["title"], video["type"]) == (name, "video/mp4")


async def test_an_import_of_another_file_is_refused(served: Served) -> None:
    for url, code in (
        ("https://files.example.com/page.html", 415),
        ("file:///etc/passwd", 422),
        ("http://[", 422),
    ):
        answer = await served.ask("POST", "/v1/videos/import", json={"url": url})
        assert answer.status_code == code


async def test_the_list_has_pages_and_survives_the_deletion_of_its_place(served: Served) -> None:
    ids = [(await served.add(f"Video {number}"))["id"] for number in range(5)]
    first = (await served.ask("GET", "/v1/videos?limit=2")).json()
    assert [video["id"] for video in first["videos"]] == ids[:2]
    await served.ask("DELETE", f"/v1/videos/{first['next']}?permanent=true")
    rest = await served.ask("GET", "/v1/videos", params={"after": first["next"]})
    assert [video["id"] for video in rest.json()["videos"]] == ids[2:]
    assert rest.json()["next"] is None
    assert (await served.ask("GET", "/v1/videos?after=nowhere")).status_code == 422


async def test_the_events_of_a_videos_life_have_the_documented_data() -> None:
    async with serving() as served, StubServer() as destination:
        await served.register(destination.url())
        video = (await served.add())["id"]
        await served.control(f"videos/{video}/replace")
        await served.step(3600)
        await served.control(f"videos/{video}/trim", {"durationSeconds": 30.5})
        await served.step(3600)
        await served.ask("DELETE", f"/v1/videos/{video}")
        assert (await served.ask("GET", f"/v1/videos/{video}")).json()["video"]["trashed"]
        await served.ask("DELETE", f"/v1/videos/{video}?permanent=true")
        assert (await served.ask("GET", f"/v1/videos/{video}")).status_code == 404
        await served.step(0)
    events = [orjson.loads(request.body) for request in destination.requests]
    assert [event["event"] for event in events] == [
        "video.created",
        *("video.ready", "video.ready", "video.ready"),
        *("video.deleted", "video.deleted"),
    ]
    for event in events:
        sample = sample_events.event(event["event"]).document()
        assert list(event) == list(sample)
        assert list(event["data"]) == list(sample["data"])
    assert [event["data"]["version"] for event in events[1:4]] == [1, 2, 3]
    assert events[3]["data"]["durationSeconds"] == 30.5
    assert [event["data"]["trashed"] for event in events[4:]] == [True, False]


async def test_only_a_new_video_reports_that_its_processing_failed() -> None:
    async with serving() as served, StubServer() as destination:
        await served.register(destination.url(), "video.failed", "video.ready")
        body = {"url": "https://files.example.com/tour.mp4"}
        new = (await served.ask("POST", "/v1/videos/import", json=body)).json()["video"]["id"]
        await served.control(f"videos/{new}/fail", {"message": "The file is empty."})
        published = (await served.add())["id"]
        await served.control(f"videos/{published}/replace")
        await served.control(f"videos/{published}/fail")
        await served.step(3600)
        await served.control(f"videos/{published}/trim", {"durationSeconds": 1})
        await served.control(f"videos/{published}/fail")
        kept = (await served.ask("GET", f"/v1/videos/{published}")).json()["video"]
        assert (kept["version"], kept["durationSeconds"] > 1) == (1, True)
        assert await status(served, new) == "failed"
        assert await status(served, published) == "ready"
        assert (await served.client.post(f"/sandbox/videos/{new}/fail", json={})).status_code == 409
    failed, ready = [orjson.loads(request.body) for request in destination.requests]
    assert (failed["event"], ready["event"]) == ("video.failed", "video.ready")
    assert failed["data"]["errorMessage"] == "The file is empty."
    assert failed["data"]["durationSeconds"] is None
