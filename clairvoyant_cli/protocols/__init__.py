"""What the wire formats mean: routes, requests, answers, errors. Read only; bytes pass untouched."""
