"""Run graphs of functions: claims, driver, progress and results."""
