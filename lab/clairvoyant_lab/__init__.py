"""The laboratory: simulator, benchmarks, studies and training. The product does not import it."""
