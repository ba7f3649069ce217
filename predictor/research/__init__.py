"""Research code: training and judging predictors. Nothing that serves imports it."""
