"""Artifacts: components that were quantised beforehand, how they are named, described, checked and kept. No torch here.

names       file names, ours and those that exist already
manifest    what an artifact says of itself; its sha256 is the artifact's id
gates       what an artifact passed, and of which id
validation  a manifest against what a plan wants
folder      an artifact that lies in a folder by its names, as on the Hub
store       many artifacts by their content, in a folder or behind a URL
collecting  removes from a store what nothing refers to
"""
