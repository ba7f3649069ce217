"""Judging predictors: on files of prompts and answers, on traffic never seen, in the paper's way."""
