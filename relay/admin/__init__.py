"""The admin listener: open metrics and health, and an API behind a token."""

from relay.admin.app import admin_app
from relay.admin.services import AdminServices

__all__ = ["AdminServices", "admin_app"]
