"""The configuration file `cluster_config.yaml`: its blocks, and how it is read and checked.

Only the controller and `grid config` import this: pydantic takes long to load.
"""
