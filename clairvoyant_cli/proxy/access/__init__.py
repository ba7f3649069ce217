"""Who may send requests, and how many: keys, clients' limits, allowed origins, urgency rules."""
