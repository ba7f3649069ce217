"""The database schema, as a list of migrations.

Never rename or remove one: files record the names of those applied. To change the schema, add another.
"""

from sqlite_utils import Database, Migrations

migrations = Migrations("clairvoyant")


def _migration(name: str, *statements: str) -> None:
    @migrations(name=name)
    def apply(db: Database) -> None:
        for statement in statements:
            db.execute(statement)


_migration(
    "profiles_and_their_samples",
    # Profiles whole as JSON, beside the columns that choose between them.
    """CREATE TABLE profiles (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        backend TEXT NOT NULL,
        place TEXT NOT NULL,
        model TEXT NOT NULL,
        host TEXT NOT NULL,
        measured_at REAL NOT NULL,
        chosen_at REAL,
        record TEXT NOT NULL
    )""",
    "CREATE INDEX profiles_fit ON profiles (host, backend, place, measured_at)",
    """CREATE TABLE samples (
        profile INTEGER NOT NULL REFERENCES profiles ON DELETE CASCADE,
        number INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (profile, number)
    ) WITHOUT ROWID""",
)
_migration(
    "history_and_its_tally",
    """CREATE TABLE history (
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
    )""",
    "CREATE INDEX history_time ON history (finished_at)",
    "CREATE INDEX history_class ON history (length_class, finished_at, sojourn_s, waited_s)",
    "CREATE INDEX history_client ON history (client, finished_at)",
)
_migration(
    "states_that_last",
    "CREATE TABLE states (name TEXT PRIMARY KEY, saved_at REAL NOT NULL, state BLOB NOT NULL) WITHOUT ROWID",
    # The key of the client hashes.
    "CREATE TABLE salt (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), salt BLOB NOT NULL)",
    "INSERT INTO salt VALUES (1, randomblob(32))",
)
_migration("clocks_and_times_that_move")  # nothing: it created what `clocks_and_tally_dropped` drops
_migration("how_often_an_answer_was_cut", "ALTER TABLE history ADD COLUMN cuts INTEGER NOT NULL DEFAULT 0")
_migration(
    "how_urgent_a_request_was",
    "ALTER TABLE history ADD COLUMN urgency INTEGER",
    "ALTER TABLE history ADD COLUMN urgency_by TEXT NOT NULL DEFAULT ''",
)
_migration(
    "how_often_an_answer_was_asked_for_again",
    "ALTER TABLE history ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0",
)
_migration(
    "clocks_and_tally_dropped",  # counts by hour and corrections of times, which older versions kept
    "DROP TRIGGER IF EXISTS history_counts_in",
    "DROP TRIGGER IF EXISTS history_counts_out",
    "DROP TRIGGER IF EXISTS history_counts_over",
    "DROP TABLE IF EXISTS clocks",
    "DROP TABLE IF EXISTS tally",
)
_migration(
    "sessions_and_what_was_cached",
    "ALTER TABLE history ADD COLUMN session TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE history ADD COLUMN read_tokens INTEGER",
    "ALTER TABLE history ADD COLUMN cached_tokens INTEGER",
)
_migration("which_program_sent_a_request", "ALTER TABLE history ADD COLUMN program TEXT NOT NULL DEFAULT ''")
_migration("what_was_wrong_with_a_request", "ALTER TABLE history ADD COLUMN remark TEXT NOT NULL DEFAULT ''")
_migration(
    "what_a_request_gained_over_order_of_arrival",
    "ALTER TABLE history ADD COLUMN saved_s REAL",
    "ALTER TABLE history ADD COLUMN spared_tokens REAL",
)
_migration("bodies_instead_of_prompts", "ALTER TABLE history ADD COLUMN body TEXT")
