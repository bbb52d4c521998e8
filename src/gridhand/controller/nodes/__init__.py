"""The nodes that report to the controller, and what is measured there."""
