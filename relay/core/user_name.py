"""Names of the system's users."""

import pwd


def user_name(uid: int) -> str:
    """Return a user's name, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
