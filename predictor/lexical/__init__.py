"""The default predictor: what it reads of a prompt, its model, and what it learns while serving."""
