"""What is measured on a GPU, at full size with random weights: nothing is downloaded.

`models.py` says which models at which size, `building.py` builds them on the GPU, `measuring.py` counts bytes and
milliseconds, `predicting.py` asks the planner's own arithmetic for the same figures.
"""
