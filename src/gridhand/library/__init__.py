"""Grid and its kin: what a Python program uses."""
