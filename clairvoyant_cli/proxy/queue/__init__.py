"""The asyncio side of the scheduler: request records, dispatching, and the operator's settings."""
