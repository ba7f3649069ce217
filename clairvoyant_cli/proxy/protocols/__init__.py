"""What the backends' dialects mean: routes, requests, answers, errors. Read only; bytes pass untouched."""
