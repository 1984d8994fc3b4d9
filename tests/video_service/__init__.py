"""Tests of `relay/video_service`."""
