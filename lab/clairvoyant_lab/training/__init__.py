"""Making models: data, labels, fitting, and the card that goes with each; needs the `train` extra."""
