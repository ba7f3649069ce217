"""The path of a request: admission, dispatch to a server, relay of its answer."""
