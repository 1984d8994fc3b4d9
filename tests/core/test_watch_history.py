"""A watch history is bounded, sorted and printable, whatever an API says."""

import pytest

from relay.core.watch_history import (
    ID_MAX,
    LATEST_MS,
    TITLE_MAX,
    VIDEOS_MAX,
    WatchedVideo,
    WatchHistory,
)


def of(*videos: WatchedVideo) -> WatchHistory:
    return WatchHistory.of(videos)


def test_the_video_that_was_watched_last_comes_first() -> None:
    history = of(
        WatchedVideo(id="old", last_ms=1_000),
        WatchedVideo(id="unknown"),
        WatchedVideo(id="new", last_ms=3_000),
    )
    assert [video.id for video in history.videos] == ["new", "old", "unknown"]
    assert history.last_ms == 3_000


def test_videos_beyond_the_limit_are_counted_only() -> None:
    history = of(*(WatchedVideo(id=f"v{n}", last_ms=n) for n in range(VIDEOS_MAX + 5)))
    assert (history.count, len(history.videos)) == (VIDEOS_MAX + 5, VIDEOS_MAX)


def test_an_empty_history_has_no_last_visit() -> None:
    assert (of().count, of().last_ms) == (0, None)


@pytest.mark.parametrize("last_ms", [-1, LATEST_MS, 10**30])
def test_an_impossible_time_is_unknown(last_ms: int) -> None:
    assert of(WatchedVideo(id="v", last_ms=last_ms)).last_ms is None


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("  Product \r\n\t tour ", "Product tour"),
        ("a\x00b\x1b[31mc\u202ed\u200be\ud800f", "ab[31mcdef"),
        ("\u2028\u2029", None),
        ("", None),
        ("x" * 500, "x" * (TITLE_MAX - 1) + "…"),
        ("\x00" * 100_000 + "x", None),
    ],
)
def test_a_title_is_one_printable_line(title: str, line: str | None) -> None:
    assert of(WatchedVideo(id="v", title=title)).videos[0].title == line


def test_an_id_is_one_short_line_too() -> None:
    assert len(of(WatchedVideo(id="v\n" * 500)).videos[0].id) == ID_MAX
