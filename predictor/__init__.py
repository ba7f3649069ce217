"""Predicts how long an answer will be, from the request alone.

Importing this package imports neither numpy nor onnxruntime; `load` does.
"""

import os

from predictor.loading import load_encoder, load_urgency
from predictor.loading import load_model as load

# Before onnxruntime is imported anywhere: since 1.29 its wheels send telemetry, under an id that they keep in
# the user's home directory. Nothing may leave the machine.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__all__ = ["load", "load_encoder", "load_urgency"]
