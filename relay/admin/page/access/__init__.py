"""Access to the page: hosts, logins, sessions, and checks of changes."""

from relay.admin.page.access.address import Place, Refusal
from relay.admin.page.access.forms import CheckFailure
from relay.admin.page.access.gate import Gate, LoggedIn, LoginRefused
from relay.admin.page.access.headers import LOGOUT_HEADERS, SECURITY_HEADERS
from relay.admin.page.access.targets import own_path
from relay.admin.page.access.tokens import Tokens
from relay.admin.page.access.visitor import Visitor

__all__ = [
    "LOGOUT_HEADERS",
    "SECURITY_HEADERS",
    "CheckFailure",
    "Gate",
    "LoggedIn",
    "LoginRefused",
    "Place",
    "Refusal",
    "Tokens",
    "Visitor",
    "own_path",
]
