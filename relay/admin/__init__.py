"""The admin listener: who may ask what; metrics and health for anyone, the rest for a token."""

from relay.admin.app import Admin, admin_app

__all__ = ["Admin", "admin_app"]
