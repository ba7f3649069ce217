"""Which waiting job runs next, decided without I/O: `now` is an argument and cost is a float."""
