"""`python -m darkroom.cli` is `darkroom`."""

from darkroom.cli import main

main()
