"""Checks of the set-up, each with the command that fixes a problem."""
