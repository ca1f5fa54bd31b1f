"""Generated from protos/darkroom/v1 by protos/generate.py; nothing here is written by hand."""
