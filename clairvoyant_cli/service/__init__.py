"""Clairvoyant as a service of the user who installs it: a systemd user unit, a launchd agent."""
