"""The database schema, as a list of migrations.

Never rename or remove one: files record the names of those applied. To change the schema, add another.
"""

from sqlite_utils import Database, Migrations

migrations = Migrations("clairvoyant")


@migrations()
def profiles_and_their_samples(db: Database) -> None:
    """Profiles whole as JSON, beside the columns that choose between them."""
    db.execute("""
        CREATE TABLE profiles (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            backend TEXT NOT NULL,
            place TEXT NOT NULL,
            model TEXT NOT NULL,
            host TEXT NOT NULL,
            measured_at REAL NOT NULL,
            chosen_at REAL,
            record TEXT NOT NULL
        )""")
    db.execute("CREATE INDEX profiles_fit ON profiles (host, backend, place, measured_at)")
    db.execute("""
        CREATE TABLE samples (
            profile INTEGER NOT NULL REFERENCES profiles ON DELETE CASCADE,
            number INTEGER NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (profile, number)
        ) WITHOUT ROWID""")


@migrations()
def history_and_its_tally(db: Database) -> None:
    """Finished requests."""
    db.execute("""
        CREATE TABLE history (
            id INTEGER PRIMARY KEY,
            finished_at REAL NOT NULL,
            request TEXT NOT NULL,
            outcome TEXT NOT NULL,
            status INTEGER NOT NULL,
            endpoint TEXT NOT NULL,
            backend TEXT NOT NULL,
            model TEXT NOT NULL,
            client BLOB NOT NULL,
            predicted_class TEXT NOT NULL,
            p_long REAL NOT NULL,
            expected_tokens REAL NOT NULL,
            q90_tokens REAL NOT NULL,
            source TEXT NOT NULL,
            tokens INTEGER,
            prompt_tokens INTEGER,
            length_class TEXT NOT NULL,
            policy TEXT NOT NULL,
            dispatched_by TEXT NOT NULL,
            waited_s REAL NOT NULL,
            sojourn_s REAL NOT NULL,
            ttft_s REAL,
            decode_s REAL,
            prefill_s REAL,
            prompt TEXT
        )""")
    db.execute("CREATE INDEX history_time ON history (finished_at)")
    db.execute("CREATE INDEX history_class ON history (length_class, finished_at, sojourn_s, waited_s)")
    db.execute("CREATE INDEX history_client ON history (client, finished_at)")


@migrations()
def states_that_last(db: Database) -> None:
    """Named states of running parts, and the salt under which clients are hashed."""
    db.execute("""
        CREATE TABLE states (
            name TEXT PRIMARY KEY,
            saved_at REAL NOT NULL,
            state BLOB NOT NULL
        ) WITHOUT ROWID""")
    db.execute("CREATE TABLE salt (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), salt BLOB NOT NULL)")
    db.execute("INSERT INTO salt VALUES (1, randomblob(32))")


@migrations()
def clocks_and_times_that_move(db: Database) -> None:
    """Nothing: it created what `clocks_and_tally_dropped` drops."""


@migrations()
def how_often_an_answer_was_cut(db: Database) -> None:
    """How often a request made way for another in mid-answer."""
    db.execute("ALTER TABLE history ADD COLUMN cuts INTEGER NOT NULL DEFAULT 0")


@migrations()
def how_urgent_a_request_was(db: Database) -> None:
    """The level that a request had, and who gave it."""
    db.execute("ALTER TABLE history ADD COLUMN urgency INTEGER")
    db.execute("ALTER TABLE history ADD COLUMN urgency_by TEXT NOT NULL DEFAULT ''")


@migrations()
def how_often_an_answer_was_asked_for_again(db: Database) -> None:
    """How often an answer broke off and was asked for again."""
    db.execute("ALTER TABLE history ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0")


@migrations()
def clocks_and_tally_dropped(db: Database) -> None:
    """Drop the counts by hour and the corrections of times, which older versions kept."""
    for trigger in ("history_counts_in", "history_counts_out", "history_counts_over"):
        db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    db.execute("DROP TABLE IF EXISTS clocks")
    db.execute("DROP TABLE IF EXISTS tally")


@migrations()
def sessions_and_what_was_cached(db: Database) -> None:
    """The session of a request, and how its prompt divides into tokens read and tokens from the cache."""
    db.execute("ALTER TABLE history ADD COLUMN session TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE history ADD COLUMN read_tokens INTEGER")
    db.execute("ALTER TABLE history ADD COLUMN cached_tokens INTEGER")


@migrations()
def which_program_sent_a_request(db: Database) -> None:
    """The name of an agent or SDK, from its user agent."""
    db.execute("ALTER TABLE history ADD COLUMN program TEXT NOT NULL DEFAULT ''")


@migrations()
def what_was_wrong_with_a_request(db: Database) -> None:
    """A remark: a prompt that the server truncated, an answer that repeats itself."""
    db.execute("ALTER TABLE history ADD COLUMN remark TEXT NOT NULL DEFAULT ''")


@migrations()
def what_a_request_gained_over_order_of_arrival(db: Database) -> None:
    """The seconds and prompt tokens that a request was spared against order of arrival."""
    db.execute("ALTER TABLE history ADD COLUMN saved_s REAL")
    db.execute("ALTER TABLE history ADD COLUMN spared_tokens REAL")


@migrations()
def bodies_instead_of_prompts(db: Database) -> None:
    """What the client sent, if prompts are recorded."""
    db.execute("ALTER TABLE history ADD COLUMN body TEXT")
