"""`python -m holdfast.cli`, for when `holdfast` is not on the PATH."""

from . import main

main()
