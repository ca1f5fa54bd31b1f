"""Doubles that are real servers: a worker without an engine, a planner without knowledge, a gateway around them.

Each follows the contract in its proto file; what it can be told to do wrong is named where it is defined.
"""
