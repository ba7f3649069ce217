"""Measures an LLM server: its speed, its slots, and how long short answers queue.

`bench` compares proxies under load; this asks one server directly.
"""
