"""Celery and taskiq doing the same durable nothing on the same Redis: what one submit and one whole task cost there.

    pip install '.[bench]'
    python -m bench.rivals --save bench/results/rivals.json

The same server with appendfsync always, two worker processes beside one that asks, results stored. A task returns the
20 bytes that it was given. That is less than what Darkroom does: neither keeps a file, tells progress, holds a lease
with a fencing token, or answers twice the same for one request id; and their submits go straight to Redis, where
Darkroom's pass a gateway.
"""

PAYLOAD = "x" * 20
WARM_UP = 50
