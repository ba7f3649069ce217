"""The commands that appear in `clairvoyant --help` where the laboratory is installed."""

COMMANDS = {
    "simulate": "Simulate scheduling policies on the papers' workloads or your own.",
    "bench": "Benchmark scheduling policies on your own machine.",
    "study": "Print the tables of the predictor's studies.",
    "train": "Train a predictor on your own logs.",
    "evaluate": "Evaluate a predictor on prompts with known answer lengths.",
}
