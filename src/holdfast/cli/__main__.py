"""`python -m holdfast.cli`, where the command is not on the PATH."""

from . import main

main()
