"""The state that the daemon publishes: records, encoding, history, and the client that reads it."""
