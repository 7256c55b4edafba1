"""`python -m psgd.launch` is the `psgd` command."""

from psgd.launch.cli import main

main()
