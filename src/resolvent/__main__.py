"""`python -m resolvent` is the command line."""

from resolvent.cli import main

main()
