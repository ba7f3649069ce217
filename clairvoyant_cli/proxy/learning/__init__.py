"""What the daemon learns from traffic, and what it keeps over a restart."""
