"""The chaos suite: real gateways, workers, planner and Redis, broken on purpose while clients write down what they see.

    python -m tests.chaos.run --seed 7 --minutes 15 --gateways 3 --workers 8 --jobs 5000

`README.md` beside this file says what is broken, what is checked, and how a run is replayed.
"""
