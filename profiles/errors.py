"""What can go wrong with the database, in one line that says what to do."""


class ProfilesError(Exception):
    """The database cannot be used as asked; the message is one line for a user."""


class DamagedError(ProfilesError):
    """The file holds a database that SQLite cannot read any more."""
