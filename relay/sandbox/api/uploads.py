"""Uploads in three steps, whole or in parts, and the storage that takes the files (section 4)."""

from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relay.sandbox.analytics.records import Record
from relay.sandbox.api.operation import Body, Call, Id, Operation, Parameters
from relay.sandbox.api.videos import Title, VideoAnswer, VideoRecord
from relay.sandbox.model import Access, Upload
from relay.sandbox.services import Services
from relay.sandbox.uploads import PART_SIZE

STORAGE = "/storage"
"""Path of the upload URLs, which take no key."""

Name = Annotated[str, Meta(min_length=1, max_length=500)]
_RESTRICTED_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*"
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PARAMETERS = rf'( *; *{_WORD}=({_WORD}|"[ !#-\[\]-~]*"))*'
MediaType = Annotated[
    str,
    Meta(
        # It becomes the value of a header (RFC 6838, section 4.2, and RFC 9110, section 8.3.1).
        pattern=rf"^{_RESTRICTED_NAME}/{_RESTRICTED_NAME}{_PARAMETERS}\Z",
        max_length=255,
        extra_json_schema={"pattern": rf"^(video|audio)/{_RESTRICTED_NAME}{_PARAMETERS}$"},
    ),
]


class NewUpload(Body):
    """The file that is going to be sent."""

    title: Title
    filename: Name
    size: Annotated[int, Meta(ge=1)]
    """Bytes, at most 20 GB."""
    type: MediaType
    """A media type of video or audio."""


class UploadTarget(Record):
    """Where the bytes go, with exactly these headers."""

    url: str
    method: Literal["PUT"]
    headers: dict[str, str]

    @classmethod
    def of(cls, upload: Upload, call: Call) -> "UploadTarget":
        url = f"{call.base_url}{STORAGE}/{upload.token}"
        return cls(url=url, method="PUT", headers=upload.headers)


class UploadAnswer(Record):
    """A new video, and where its file goes."""

    video: VideoRecord
    upload: UploadTarget


class Part(Record):
    """A part of a file that is still to come."""

    number: int
    size: int
    upload: UploadTarget

    @classmethod
    def of(cls, upload: Upload, call: Call) -> "Part":
        target = UploadTarget.of(upload, call)
        return cls(number=upload.part or 0, size=upload.size, upload=target)


class ArrivedPart(Record):
    """A part of a file that has arrived."""

    number: int
    size: int


class Parts(Record):
    """All parts of a file, in order."""

    part_size: int
    parts: list[Part]


class PartsLeft(Record):
    """The parts that arrived, and those that did not, with new URLs."""

    part_size: int
    arrived: list[ArrivedPart]
    missing: list[Part]


def create_upload(call: Call, _: Parameters, body: NewUpload) -> UploadAnswer:
    """Create a video, and the URL for its file."""
    services = call.services
    video = services.library.create(
        title=body.title, filename=body.filename, size=body.size, media_type=body.type
    )
    target = UploadTarget.of(services.uploads.begin(video), call)
    return UploadAnswer(video=VideoRecord.of(video), upload=target)


def complete_upload(call: Call, video: Id) -> VideoAnswer:
    """Begin the processing of a file that has arrived."""
    return VideoAnswer(video=VideoRecord.of(call.services.uploads.complete(video.id)))


def begin_parts(call: Call, video: Id) -> Parts:
    """Begin an upload in parts of 16 MB."""
    parts = call.services.uploads.begin_parts(video.id)
    return Parts(part_size=PART_SIZE, parts=[Part.of(part, call) for part in parts])


def resume_parts(call: Call, video: Id) -> PartsLeft:
    """Report which parts have arrived; the URLs of the others are new."""
    arrived, missing = call.services.uploads.resume_parts(video.id)
    return PartsLeft(
        part_size=PART_SIZE,
        arrived=[ArrivedPart(number=part.part or 0, size=part.size) for part in arrived],
        missing=[Part.of(part, call) for part in missing],
    )


def complete_parts(call: Call, video: Id) -> VideoAnswer:
    """Begin the processing of a file whose parts have all arrived."""
    return VideoAnswer(video=VideoRecord.of(call.services.uploads.complete_parts(video.id)))


def storage_routes(services: Services) -> list[Route]:
    """Build the route of the upload URLs."""

    async def put(request: Request) -> Response:
        upload = services.uploads.admit(request.path_params["token"], request.headers)
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > upload.size:
                break
        services.uploads.arrived(upload, size=size)
        services.save()
        return Response()

    return [Route(f"{STORAGE}/{{token}}", put, methods=["PUT"])]


_WRITE: Access = "Read & write videos"
_FORBIDDEN_STATE = {409: "The state of the upload forbids it."}

_NEITHER = {415: "The file is neither video nor audio."}

OPERATIONS = tuple(
    Operation(
        "POST", f"/v1/videos/{path}", handler, access=_WRITE, status=status, problems=problems
    )
    for path, handler, status, problems in (
        ("uploads", create_upload, 201, _NEITHER),
        ("{id}/complete", complete_upload, 200, _FORBIDDEN_STATE),
        ("{id}/multipart", begin_parts, 201, _FORBIDDEN_STATE),
        ("{id}/multipart/resume", resume_parts, 200, _FORBIDDEN_STATE),
        ("{id}/multipart/complete", complete_parts, 200, _FORBIDDEN_STATE),
    )
)
