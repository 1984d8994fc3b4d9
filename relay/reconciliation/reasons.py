"""Reasons why something could not be reconstructed, in words for the operator."""

from typing import Literal

Reason = Literal[
    "anonymous",
    "creation_gone",
    "deletion_forgotten",
    "form_recent",
    "lead_without_address",
    "no_percent",
    "older",
    "older_video",
    "trash_gone",
    "undated",
    "version_gone",
    "video_recent",
    "view_open",
]

WORDS: dict[Reason, str] = {
    "anonymous": "views by nobody known, which cannot be restored",
    "creation_gone": "videos that are gone, and whose creation may have been missed",
    "deletion_forgotten": (
        "videos that are gone, and whose deletion may have been received and forgotten"
    ),
    "form_recent": "forms that may still be on their way",
    "lead_without_address": "forms without an e-mail address",
    "no_percent": "milestones in doubt, of which the API does not say how much was watched",
    "older": "milestones that may be older than the relay's knowledge",
    "older_video": "changes of videos that may be older than the relay's knowledge",
    "trash_gone": "deletions for good, before which the video may have been moved to Trash",
    "undated": "views without a video or a time",
    "version_gone": "earlier versions of videos, of which the API shows only the last",
    "video_recent": "changes of videos that may still be on their way",
    "view_open": "views that are not over yet, or ended too short a time ago",
}
