"""`python -m clairvoyant_cli` is the `clairvoyant` command."""

from clairvoyant_cli.main import main

main()
