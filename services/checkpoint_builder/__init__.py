"""The checkpoint builder: quantised components, built layer by layer, gated, kept in a store and published.

order       what is asked, against the catalogue
builder     builds as jobs, one at a time
child       the process that builds one; `making/` is what it runs, the only part that owns torch
gates       whether a checkpoint may be used
shelf       the store, as callers see it
publishing  the Hub
"""
