"""The race that `clairvoyant demo` shows, on simulated LLM servers."""
