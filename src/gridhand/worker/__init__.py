"""Workers: warm processes that call functions for the client that asked for them.

A worker is the command of an ordinary job. It connects back to the client, and then gets calls
from it directly. This room is also what both sides agree on: frames, and values as bytes.
"""
