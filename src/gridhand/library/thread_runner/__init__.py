"""Run function calls in threads of this process, for a grid without a controller."""
