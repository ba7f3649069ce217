"""The laboratory: simulator, benchmarks, studies and training. The product does not import it."""

import clairvoyant_cli  # noqa: F401 - makes predictor, profiles and tui importable
