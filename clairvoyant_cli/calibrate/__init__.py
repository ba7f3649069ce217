"""Measures an LLM server: how fast it is, how many answers it gives at once, and how long short ones queue.

Apart from `bench`, which compares proxies under a load of their own: this asks one server, directly.
"""
