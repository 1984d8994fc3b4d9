"""Access to the page: hosts, logins, sessions, and checks of changes."""
