"""The process that makes checkpoints: one order, from dense weights to a folder of files with a manifest, then it ends.

Knows nothing of gRPC, jobs or gates. It says what it does in lines of JSON, each a `Build` with what changed.
"""
