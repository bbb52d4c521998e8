"""The SQL stores: schema, statements and migrations for SQLite and PostgreSQL."""
