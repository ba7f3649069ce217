"""How urgent a request is, from its text alone: a level from 0, immediate, to 4, whenever there is time."""
