"""Estimates how urgent a request is from its text: a level from 0 (immediate) to 4 (not urgent)."""
