"""The asyncio shell round the scheduler: HTTP on both sides, the queue in the middle."""
