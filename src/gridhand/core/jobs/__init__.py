"""Jobs, their attempts, and when they are retried."""
