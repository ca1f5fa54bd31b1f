"""Tests of the models that ship with Darkroom."""
