"""The columns of a day's audience: compressed bitmaps, each with a checksum.

With one, because SQLite does not notice changed bytes, and a changed bitmap must not be read.
"""

import zlib
from collections.abc import Iterator

import msgspec
from pyroaring import BitMap, BitMap64

VIDEO_BITS = 32
"""Position of the video's number in a pair of video and person; 0 stands for no video."""

NUMBER_MAX = (1 << VIDEO_BITS) - 1
_PAIR_MAX = (1 << 64) - 1
_CRC_BYTES = 4

Counts = tuple[int, int]
"""All events, and those without an address."""

_SLOTS = msgspec.msgpack.Decoder(dict[int, tuple[int, int, bytes]])
_VIDEOS = msgspec.msgpack.Decoder(dict[int, Counts])


class Damaged(Exception):
    """A stored bitmap has changed; the rows that it was made of are still there."""


def pair(video: int, person: int) -> int:
    return video << VIDEO_BITS | person


def of_video(viewers: BitMap64, video: int) -> BitMap64:
    """Reduce pairs to those of one video."""
    viewers.remove_range(0, pair(video, 0))
    viewers.remove_range(pair(video + 1, 0), _PAIR_MAX)
    return viewers


def by_video(viewers: BitMap64) -> dict[int, int]:
    """Count the people of each video."""
    counts: dict[int, int] = {}
    left = len(viewers)
    start = viewers.min() if left else 0
    while left:
        video = start >> VIDEO_BITS
        end = pair(video + 1, 0)
        counts[video] = viewers.range_cardinality(pair(video, 0), end)
        left -= counts[video]
        start = viewers.next_set_bit(end) if left else end
    return counts


def people_of(blob: bytes) -> BitMap:
    """Read the column `people`; raises Damaged."""
    return BitMap.deserialize(without_checksum(blob))


def viewers_of(blob: bytes) -> BitMap64:
    """Read the column `viewers`; raises Damaged."""
    return BitMap64.deserialize(without_checksum(blob))


def slots_of(blob: bytes) -> Iterator[tuple[int, Counts, bytes]]:
    """Read the column `half_hours`: position, events and people.

    Raises Damaged.
    """
    slots = _SLOTS.decode(without_checksum(blob)).items()
    return ((at, (events, anonymous), people) for at, (events, anonymous, people) in slots)


def videos_of(blob: bytes) -> dict[int, Counts]:
    """Read the column `videos`; raises Damaged."""
    return _VIDEOS.decode(without_checksum(blob))


def with_checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CRC_BYTES, "big") + content


def without_checksum(blob: bytes) -> bytes:
    content = blob[_CRC_BYTES:]
    if zlib.crc32(content).to_bytes(_CRC_BYTES, "big") != blob[:_CRC_BYTES]:
        raise Damaged
    return content
