"""HTTP/1.1 on both sides of the proxy: framing, listener, upstream connections. Knows no LLM."""
