"""The planner: decides how a model runs on a device. A pure function behind an RPC; keeps nothing, opens nothing."""
