"""What the daemon reports about itself: state, statistics, metrics, events."""
