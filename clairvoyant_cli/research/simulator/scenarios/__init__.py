"""The papers' experiments, each as a function that returns a report with the paper's figures beside ours."""
