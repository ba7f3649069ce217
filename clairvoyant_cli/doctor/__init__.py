"""What is wrong with a set-up, and the command that fixes it."""
