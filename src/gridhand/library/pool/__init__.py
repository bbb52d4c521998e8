"""Run function calls in warm worker processes that hold their resources."""
