"""The admin listener: who may ask what; metrics and health for anyone, the rest for a token."""

from relay.admin.app import admin_app
from relay.admin.services import AdminServices

__all__ = ["AdminServices", "admin_app"]
