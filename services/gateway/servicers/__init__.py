"""The gateway's RPCs: decode, call, encode.

Knows nothing that the domain files know. Invariant: an RPC is a few lines.
"""
