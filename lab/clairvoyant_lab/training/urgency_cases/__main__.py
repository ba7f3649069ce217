"""Train the shipped urgency model, in minutes: `python -m clairvoyant_lab.training.urgency_cases`."""

import argparse
from pathlib import Path

from clairvoyant_lab.training.shipped_models import narrate
from clairvoyant_lab.training.urgency_cases.writing import read_apart, read_day, write_cases
from clairvoyant_lab.training.urgency_model import train_urgency
from predictor.loading import MODELS, URGENCY


def main() -> None:
    """Train on the written cases, and judge on those that stand apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODELS / URGENCY, help="where the model directory goes")
    data = "cases written for it (lab/clairvoyant_lab/training/urgency_cases)"
    apart = {"apart": read_apart(), "day": read_day()}
    for verdict in train_urgency(write_cases(), parser.parse_args().out, "MIT", data, narrate, apart):
        narrate(str(verdict))


if __name__ == "__main__":
    main()
