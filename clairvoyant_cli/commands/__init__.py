"""One file a command, thin: parse, compose, call, print."""
