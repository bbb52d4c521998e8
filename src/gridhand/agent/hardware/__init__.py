"""The hardware of this machine: discover it, and measure its use."""
