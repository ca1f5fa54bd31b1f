"""Gates: what a checkpoint must pass before anybody may use it.

identity   every tensor, as the store's readers load it, against what the runtime makes of the source; in the making
           process, which owns torch
"""
