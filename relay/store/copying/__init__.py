"""A copy of a stopped relay's store on SQLite into an empty schema of PostgreSQL."""
