"""The operator's page of the admin listener."""
