"""Sockets: listeners, HTTP connections, and the service manager that starts them."""
