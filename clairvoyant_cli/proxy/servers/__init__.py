"""The LLM servers behind the proxy: health, slots, loaded models, cache contents."""
