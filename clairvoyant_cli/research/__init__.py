"""Research code: benchmarks, the simulator and the replay backend. Nothing that serves imports it."""
