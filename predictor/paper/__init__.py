"""The Clairvoyant paper's own predictor: its 19 features, its model, how it is trained."""
