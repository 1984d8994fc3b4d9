"""The store on PostgreSQL, beside the store on SQLite and a minimal endpoint."""
