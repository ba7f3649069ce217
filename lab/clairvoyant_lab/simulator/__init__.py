"""Discrete events in virtual time through the very scheduler that serves."""
