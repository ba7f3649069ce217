"""What the two kinds of file say about clients, and what is said of a file that is wrong."""

import pytest

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access.clients import (
    EVERYBODY,
    ClientRules,
    Clients,
    parse_clients,
    parse_key_file,
)
from clairvoyant_cli.scheduler.fairness import Tenant

LONG = "a-secret-of-some-length"


def complaint(parse: object, text: str) -> str:
    with pytest.raises(ClairvoyantError) as wrong:
        parse(text, "FILE")  # type: ignore[operator]
    message = str(wrong.value)
    assert wrong.value.exit_code is ExitCode.USAGE
    assert message.startswith("FILE")
    assert "\n" not in message
    assert "secret" not in message, "a key is never said"
    return message


def test_keys_with_and_without_a_name() -> None:
    clients = parse_key_file(f"# ours\r\nann:{LONG}\r\n\n  ben : other:secret  \nsecret-3", "FILE")
    assert [clients.owner_of(key) for key in (LONG.encode(), b"other:secret", b"secret-3")] == [
        "ann",
        "ben",
        "key-5",
    ]
    assert clients.weak == ("ben", "key-5")
    assert clients.rules_of("ann") == EVERYBODY


def test_a_key_counts_by_its_bytes_on_the_wire() -> None:
    clients = parse_key_file("eve:schlüssel", "FILE")
    assert clients.owner_of("schlüssel".encode()) == "eve"
    assert clients.owner_of("schlüssel".encode("latin-1")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no key; write one per line"),
        ("# nothing\n\n", "has no key"),
        ("ann:secret-1\nben:\n", "line 2 has an empty key"),
        ("ben: \n", "line 1 has an empty key"),
        (":secret-1", "line 1 has an empty name"),
        ("ann:secre", "line 1 has a key of fewer than 6 characters"),
        ("ann smith:secret-1", "line 1 has a name with blanks"),
        ("ann:secret 1", "line 1 has a key with blanks"),
        ("ann:secret\x0b1", "line 1 has a key with blanks or control"),
        ("ann:secret\x85ben:secret-2", "line 1 has a key with blanks or control"),
        ("ann:secret\u2028ben:secret-2", "line 1 has a key with blanks or control"),
        ("ann:secret\x7f1", "line 1 has a key with blanks or control"),
        ("ann\x1b[31m:secret-1", "line 1 has a name with blanks or control"),
        ("what is this secret", "line 1 has a key with blanks"),
        ("ann:secret-1\n\nben:secret-1", "line 3 has the same key as line 1"),
        ("ann:secret-1\nann:secret-2", "line 2 has the same name as line 1"),
        (f"{'n' * 65}:secret-1", "more than 64 characters"),
    ],
)
def test_what_is_wrong_with_a_key_file_is_said_with_its_line(text: str, words: str) -> None:
    assert words in complaint(parse_key_file, text)


WHOLE = f"""
[defaults]
max_waiting = 20
priority = [0, 50]

[clients.ann]
key = "{LONG}"
weight = 2
max_waiting = 50
max_running = 1
tau_s = 30
priority = [-10, 100]

[clients."ben@home"]
key = "secret"
tau_s = 0
"""


def test_each_client_has_its_own_rules_and_the_defaults_for_the_rest() -> None:
    clients = parse_clients(WHOLE, "FILE")
    assert clients.rules_of("ann") == ClientRules(2.0, 50, 1, 30.0, (-10, 100))
    assert clients.rules_of("ben@home") == ClientRules(1.0, 20, None, 0.0, (0, 50))
    assert clients.rules_of("somebody") == clients.defaults == ClientRules(1.0, 20, priority=(0, 50))
    assert clients.tenants == {
        "ann": Tenant(30.0, 2.0, 1, 50),
        "ben@home": Tenant(float("inf"), 1.0, None, 20),
    }
    assert clients.owner_of(b"secret") == "ben@home"
    assert clients.weak == ("ben@home",)


@pytest.mark.parametrize("text", ["", "[defaults]", "[clients]", "[clients.ann]"])
def test_an_empty_file_lets_everybody_in(text: str) -> None:
    clients = parse_clients(text, "FILE")
    assert (clients.keys, clients.defaults) == ({}, EVERYBODY)


def test_no_file_has_no_rules_but_everybodys() -> None:
    assert Clients().rules_of("ann") == EVERYBODY
    assert (EVERYBODY.clamped(-5), EVERYBODY.clamped(5), EVERYBODY.clamped(500)) == (0, 5, 100)
    assert ClientRules(priority=(5, 10)).clamped(0) == 5


USERS = """
[clients.webui]
key = "key-of-the-front-end"
users = "X-User"
[clients.desk]
key = "key-of-the-desk"
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clients", "cannot be read as TOML"),
        ("clients = 1979-99-99", "cannot be read as TOML"),
        ("[client.ann]", "FILE: unknown section 'client'; did you mean clients?"),
        ("tokens = 1", "FILE: unknown section 'tokens'; there are defaults, clients"),
        ("[defaults]\nwieght = 1", "FILE: [defaults] unknown key 'wieght'; did you mean weight?"),
        (
            "[clients.ann]\nmax_wating = 1",
            "[clients.ann] unknown key 'max_wating'; did you mean max_waiting?",
        ),
        ("[clients.ann]\nzzz = 1", "[clients.ann] unknown key 'zzz'; there are weight,"),
        ('[defaults]\nkey = "secret-1"', "[defaults] unknown key 'key'"),
        ('[clients]\nann = "secret-1"', "[clients]: ann must be a table"),
        ("clients = 1", "clients must be a table"),
        ("[clients.ann]\nkey = 123456789", "[clients.ann] key must be text"),
        ('[clients.ann]\nkey = "abc"', "[clients.ann] has a key of fewer than 6"),
        ('[clients.ann]\nkey = ""', "[clients.ann] has an empty key"),
        ('[clients.ann]\nkey = "secret 1"', "[clients.ann] has a key with blanks"),
        ('[clients."a b"]', "[clients.'a b'] has a name with blanks"),
        ('[clients.""]', "[clients.''] has an empty name; name the client"),
        (
            '[clients.ann]\nkey = "secret-1"\n[clients.ben]\nkey = "secret-1"',
            "[clients.ben] has the same key as [clients.ann]",
        ),
        ('[clients.ann]\nkey = "secret-1"\n[clients.ben]', "[clients.ben] has no key although others have"),
        ("[clients.webui]\nusers = 'X-User'", "[clients.webui] has no key to prove the users"),
        (f"{USERS}\n[clients.'webui/ben']\nkey = 'key-of-ben'", "[clients.webui/ben] uses the key of its"),
        (f"{USERS}\n[clients.'desk/ben']\nweight = 2", "[clients.desk/ben] has no key although others have"),
        ("[clients.webui]\nusers = 'X User'", "users must be the name of a header"),
        ("[[urgency]]\nclient = 'a'", "[[urgency]] table 1 has no level"),
        ("[[urgency]]\nlevel = 5", "level must be a whole number from 0 to 4; it is '5'"),
        ("[[urgency]]\nlevel = 0\nheader = 'X-Department'", "header must be NAME: VALUE"),
        ("[[urgency]]\nlevel = 0\nmodell = 'a'", "unknown key 'modell'; did you mean model?"),
        ("[urgency]\nlevel = 0", "urgency must be tables, as in [[urgency]]"),
        ("[clients.ann]\nurgency = [3, 1]", "[clients.ann] urgency must be [MOST, LEAST]"),
        ("[clients.ann]\npredicted_urgency = 1", "predicted_urgency must be [MOST, LEAST]"),
    ],
)
def test_what_is_wrong_with_a_clients_file_is_said_with_table_and_key(text: str, words: str) -> None:
    assert words in complaint(parse_clients, text)


DEEP, WIDE = "it is nested too deeply", "it holds a number beyond 64 bits"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000, DEEP),
        ("a = " + "{a = " * 3000, DEEP),
        ("[defaults." + "a." * 5000 + "a]", DEEP),
        ("[defaults]\nweight" + ".a" * 5000 + " = 1", DEEP),
        ("[defaults]\npriority = " + "[" * 30 + "]" * 30, DEEP),
        ("[defaults]\nmax_waiting = " + "9" * 5000, WIDE),
        ("[defaults]\nmax_waiting = 0x" + "f" * 9000, WIDE),
        ("[defaults]\nweight = 9223372036854775808", WIDE),
        ("[defaults]\npriority = [-9223372036854775809, 0]", WIDE),
        ("[defaults]\nmax_waiting = 9223372036854775807", "it is '9223372036854775807'"),
    ],
)
def test_what_no_file_needs_is_said_in_one_line_too(text: str, words: str) -> None:
    """`tomllib` recurses by brackets, takes numbers of any length, and dotted keys of any depth."""
    message = complaint(parse_clients, text)
    assert words in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("weight", ["0", "-1", "nan", "inf", '"2"', "true", "101"]),
        ("max_waiting", ["0", "-1", "1.5", "true", "[1]", "9007199254740992"]),
        ("max_running", ["0", '"1"']),
        ("tau_s", ["-1", "nan", "inf", '"30"', "86401"]),
        ("priority", ["5", "[0]", "[5, 0]", "[-101, 0]", "[0, 101]", "[0.0, 1]", "[false, true]"]),
    ],
)
def test_a_limit_of_another_kind_is_refused(key: str, values: list[str]) -> None:
    for value in values:
        for table in ("defaults", "clients.ann"):
            message = complaint(parse_clients, f"[{table}]\n{key} = {value}")
            assert message.startswith(f"FILE: [{table}] {key} must be ")
