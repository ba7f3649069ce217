"""What opens over the board."""
