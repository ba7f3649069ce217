"""One painter a panel: pure functions from a scene to lines."""
