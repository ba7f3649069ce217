"""Preemption: cuts running requests for shorter ones, continues them, and proves that no client can tell."""
