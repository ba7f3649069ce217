"""Load generators and the embedded replay backend."""
