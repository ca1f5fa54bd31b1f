"""The planner: decides how a model runs on a device. A pure function behind an RPC; keeps nothing, opens nothing.

planning      one question, one answer: the story in one function
question      a request with its model, defaults, device class, number type and engine
engines       diffusers, or stable-diffusion.cpp where it is there
ladder        which schemes this device may use, best first, and why others may not
placement     where weights rest at each stage, and the order in which that costs time
sources       where the denoisers can be had, and what is still to be fetched
candidates    every pairing of these that works, fastest first, with what it needs
sizes         bytes of weights and activations, from the catalogue's counts
memory        what there is, what is needed, whether it fits
description   a candidate as a whole plan
recipes       what the worker does, component by component, and how long it may stay silent
speed         compilation, attention, step cache, and the time of a step
fallbacks     what follows each failure
holding       whether the plan in force has room for a larger picture
words         names and sizes as people read them
"""
