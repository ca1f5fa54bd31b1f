"""The one-machine stack, with real processes that stand in for the services."""
