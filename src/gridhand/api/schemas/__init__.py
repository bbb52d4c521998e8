"""Request bodies of the HTTP API: strict, bounded, nothing besides."""
