"""What a status code is called on the wire (RFC 9110, 15; 499 is nginx's and Ollama's, 529 Anthropic's)."""

REASONS = {
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    414: b"URI Too Long",
    417: b"Expectation Failed",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    499: b"Client Closed Request",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
    508: b"Loop Detected",
    529: b"Overloaded",
}


def reason_of(status: int) -> bytes:
    """Return the reason phrase of a status that we answer with."""
    return REASONS.get(status, b"Error" if status >= 400 else b"OK")
