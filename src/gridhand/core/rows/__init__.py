"""The one codec between values and plain data, used by the store and by the wire."""
