"""Service files for systemd, launchd and the Windows Task Scheduler."""
