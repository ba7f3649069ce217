"""One module a kind of server; the name of each is that of its kind in `addresses`."""
