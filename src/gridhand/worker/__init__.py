"""Workers: warm processes that call functions for the client that asked for them.

A worker is the command of an ordinary job. It connects back to the client, which then sends it
calls directly. What both sides agree on is here, too: frames, and values as bytes.
"""
