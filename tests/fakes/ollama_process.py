"""A simulated Ollama that listens where OLLAMA_HOST says: `python -m tests.fakes.ollama_process serve`."""

import os
import sys

from tests.fakes.replay_process import command

if __name__ == "__main__":
    command(["--port", os.environ["OLLAMA_HOST"].rpartition(":")[2], *sys.argv[2:]])
