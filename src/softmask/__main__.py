"""`python -m softmask` is the same as `softmask`."""

from softmask.cli import main

main()
