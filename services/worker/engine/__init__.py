"""The engine process: owns the device and the pipeline. The supervisor never imports this package.

`loop.py` is the process and its protocol, for any engine; `diffusers_engine.py` is the one that runs diffusers, with
`device.py` (readings), `assembly/` (how a pipeline is put together) and `generation.py` (how a picture is made).
Importing the package imports nothing heavy.
"""
