"""What draws lines, and what the keyboard and the mouse do to it."""
