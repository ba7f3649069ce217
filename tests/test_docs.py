"""README, guide and help document every command, setting and policy; links and set-up commands work."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import DEFAULT_PORT
from clairvoyant_cli.backends.priority import MAX_IN_FLIGHT
from clairvoyant_cli.config import FORMER, SILENT_S, ServeConfig
from clairvoyant_cli.main import COMMANDS, cli
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, DEFAULT_TAU_S, POLICIES
from clairvoyant_cli.settings import settings_of
from profiles.records import Continuation, verdict_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
GUIDE = "".join(page.read_text() for page in (DOCS / "README.md", *(DOCS / "guide").glob("*.md")))
REFERENCE = (DOCS / "reference.md").read_text()
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(DOCS.rglob("*.md"))
        if page.parent.name != "bench" and page.name not in ("reference.md", "metrics.md", "architecture.md")
    ),
]
"""The pages for users, each written by hand but for the settings of coding agents."""

CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PRODUCT = ("clairvoyant_cli", "predictor", "profiles", "tui")
CODE = (*PRODUCT, "lab", "tests")
SOURCE_FILES = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
SOURCES = "".join(path.read_text() for path in SOURCE_FILES)
HTTP_FIELDS = {"Host", "Origin"}
OF_OTHERS = ("beyond-one-machine.md",)
"""Pages where cut is said of something else."""

QUESTIONS = {
    "How do I install it?": ("docs/install.md#install",),
    "How do I see what I gain?": ("docs/tutorial.md#3-put-clairvoyant-in-front",),
    "Connection refused": ("docs/troubleshooting.md#your-client-says",),
    "Model not found": ("docs/troubleshooting.md#your-client-says",),
    "Nothing is faster": ("docs/troubleshooting.md#nothing-is-faster",),
    "How do I remove everything?": ("docs/install.md#uninstall",),
    "We are two users": ("docs/README.md", "docs/how-to/several-users.md"),
    "I use a coding agent": ("docs/how-to/coding-agents.md#connect-an-agent",),
    "A machine with a GPU for five people": ("docs/README.md", "docs/guide/share.md"),
    "What is sent where?": ("docs/README.md", "docs/security-model.md#guarantees"),
    "Where is the log?": ("docs/install.md#where-the-log-is",),
    "How do I ask it from Python?": ("docs/requests.md#openais-sdk",),
    "I have LM Studio": ("docs/README.md", "docs/how-to/lm-studio-and-jan.md"),
}
"""A stranger's questions, and the pages that he clicks on, from the README, until one answers."""


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"clairvoyant {name}" in README + GUIDE


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_links_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_has_help(name: str) -> None:
    found = command(name)
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"


def test_every_setting_of_serve_is_a_flag_and_is_documented() -> None:
    flags = {parameter.name for parameter in command("serve").params}
    settings = {each.name for each in fields(ServeConfig)}
    assert settings == (flags - {"config_file", "help_all", "replace", *FORMER}) | {
        "backends",
        "prefix_rules",
    }
    for name in settings - {"backends", "prefix_rules"}:
        assert f"`{name}`" in REFERENCE, name
    assert "`[[backends]]`" in REFERENCE
    assert "`[stable_prefix]`" in REFERENCE


def test_help_of_serve_lists_what_a_small_team_needs() -> None:
    parameters = command("serve").params
    context = click.Context(command("serve"), help_option_names=["--help"])
    shown = [
        each for each in command("serve").get_params(context) if each.get_help_record(context) is not None
    ]
    assert len(shown) <= 28
    hidden = {each.name for each in parameters if isinstance(each, click.Option) and each.hidden}
    assert hidden == {*FORMER, *(name for name, each in settings_of(ServeConfig).items() if each.expert)}


def test_help_all_lists_the_flags_for_experts_but_no_former_ones() -> None:
    before = [option.hidden for option in command("serve").params if isinstance(option, click.Option)]
    text = CliRunner().invoke(cli, ["serve", "--help-all"]).output
    for option, hidden in zip(command("serve").params, before, strict=True):
        assert isinstance(option, click.Option)
        option.hidden = hidden
        assert (option.opts[0] in text) == (option.name not in FORMER), option.name


def test_help_and_reference_describe_the_same_policies() -> None:
    help_text = " ".join((command("serve").get_help(click.Context(command("serve")))).split())
    for name, policy in POLICIES.items():
        assert (f"| `{name}` | {policy.summary} |" in REFERENCE) == (name in POLICIES), name
        assert (f" {name}: {policy.summary}" in help_text) == (name in POLICIES), name


def test_ci_runs_the_two_setup_commands_of_the_readme() -> None:
    section = README.split("## Two commands")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    assert "clairvoyant demo" in blocks[0]
    ci = (ROOT / ".ci/run").read_text()
    for part in ("'.[dev]'", " lab", ".ci/check"):
        assert part in blocks[1]
        assert part in ci


def test_the_changelog_names_every_command() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    for name in COMMANDS:
        assert f"`clairvoyant {name}`" in changelog


def test_the_architecture_drawing_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "draw_architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


EVERY_PAGE = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "lab").rglob("*.md")]


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_links_to_headings_resolve(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert anchor in anchors_of(page.parent / target if target else page), f"{target}#{anchor}"


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(question: str) -> None:
    clicks = QUESTIONS[question]
    assert len(clicks) <= 2
    at = ROOT / "README.md"
    for click_on in clicks:
        path, _, anchor = click_on.partition("#")
        links = {
            (at.parent / link).resolve()
            for link in re.findall(r"\]\(([^)#\s]+)", at.read_text())
            if ":" not in link
        }
        assert ROOT / path in links, f"{at.name} has no link to {path}"
        at = ROOT / path
        assert not anchor or anchor in anchors_of(at), click_on


def test_headers_in_code_are_in_the_reference_and_those_in_the_pages_exist() -> None:
    own = {name.lower() for name in re.findall(r"b\"(x-clairvoyant-[a-z-]+)\"", SOURCES, re.IGNORECASE)}
    own.remove("x-clairvoyant-asker")  # between proxies, not for users
    listed = {name.lower() for name in re.findall(r"^\| `(X-Clairvoyant-[\w-]+)`", REFERENCE, re.MULTILINE)}
    assert len(own) >= 10
    assert listed == own
    for page in PAGES:
        used = {name.lower() for name in re.findall(r"X-Clairvoyant-[\w-]+", page.read_text())}
        assert used <= own, f"{page.name}: {used - own}"


def flags_of(words: list[str]) -> set[str]:
    """Return the flags of the command that words name; those of `serve` where they go on to it."""
    found, parent = command(words[0]), click.Context(cli)
    flags = {"--help"}
    while isinstance(found, click.Group) and len(words) > 1:
        below = found.get_command(parent, words[1])
        words, found = words[1:], below if below is not None else found
    for each in (found, command("serve")) if "--" in words else (found,):
        flags |= {flag for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return flags


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_flags_that_they_are_shown_with(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    shown = re.findall(r"(?:^|`|&& |-- )clairvoyant ([a-z][^`#\n]*)", text, re.MULTILINE)
    for line in shown:
        words = re.split(r" && |; | \\?\| ", line)[0].split()
        if words[0] not in COMMANDS:
            continue
        if words[0] == "run":  # what follows is another program's
            words = words[: words.index("--")] if "--" in words else words
        for word in words[1:]:
            if word.startswith("--") and word != "--":
                flag = re.match(r"--[a-z-]+", word)
                assert flag is not None, line
                assert flag[0] in flags_of(words), f"{page.name}: {line}"


def test_flags_in_the_text_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", REFERENCE + (ROOT / "lab" / "README.md").read_text()))
    known |= {f"--{name.replace('_', '-')}" for name in settings_of(ServeConfig)}
    known |= {flag for name in COMMANDS for each in command(name).params for flag in each.opts}
    for page in (
        DOCS / "troubleshooting.md",
        DOCS / "guide" / "run.md",
        DOCS / "how-to" / "several-users.md",
    ):
        for flag in re.findall(r"`(--[a-z][a-z-]+)[` ]", page.read_text()):
            assert flag in known, f"{page.name}: {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"[`\s]((?:clairvoyant_cli|tests|docs|lab|tui)/[\w/.-]+\.\w+)", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


def test_each_message_of_the_troubleshooting_is_one_of_the_program() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    ours = page.partition("## The proxy answers")[2].partition("## Nothing is faster")[0]
    cells = [row.split(" | ")[0] for row in ours.splitlines() if row.startswith("| `")]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 25
    for message in messages:
        parts = [part.strip(" ();,:") for part in message.split("...")]
        assert any(len(part) >= 8 for part in parts), message
        for part in parts:
            assert part in SOURCES, f"{message}: the program does not say {part!r}"


def test_page_and_log_say_what_decides_whether_answers_are_preempted() -> None:
    proof = Continuation("raw", 24, 17, 0.01, repeats=12, exact_repeats=5)
    assert proof.is_exact
    assert f"`{verdict_of(proof)}`" in (DOCS / "how-to" / "cut-long-answers.md").read_text()


def test_the_paths_of_the_installation_are_those_of_the_reference() -> None:
    page = (DOCS / "install.md").read_text().partition("## What stays on the disk")[2].partition("\n## ")[0]
    rows = [[*row.split(" | "), *"   "] for row in page.splitlines() if "clairvoyant" in row]
    for system in (1, 2, 3):
        for folder in re.findall(r"`((?:~|%)\S.*?clairvoyant)`", " ".join(row[system] for row in rows)):
            assert f"`{folder}/" in REFERENCE or f"`{folder}\\" in REFERENCE, folder


def test_the_columns_of_the_glossary_are_those_of_the_screen() -> None:
    listed = (DOCS / "glossary.md").read_text().partition("## Columns of")[2]
    columns = [
        name for row in re.findall(r"^\| (`[^|]+) \|", listed, re.MULTILINE) for name in row.split(", ")
    ]
    assert len(columns) > 10
    tables = "".join(path.read_text() for path in sorted((ROOT / "tui" / "panels").glob("*.py")))
    for column in columns:
        assert f'"{column.strip("`")}"' in tables, column


def test_one_act_has_one_word() -> None:
    for page in PAGES:
        text = re.sub(r"`[^`]*`|\]\([^)]*\)|power cut", "", CODE_BLOCK.sub("", page.read_text()))
        found = re.search(r"\b(cut|cuts|cutting|interrupted answers?|interrupts? (?:a|the|that))\b", text)
        assert found is None or page.name in OF_OTHERS, f"{page.name}: {found and found[0]!r}; write preempt"


def test_pictures_are_linked() -> None:
    text = "".join(page.read_text() for page in (ROOT / "README.md", *DOCS.rglob("*.md")))
    for picture in (*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")):
        assert picture.name in text, picture


def test_unreleased_changes_are_few_lines_each() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased, _, released = changelog.partition("## [Unreleased]")[2].partition("\n## [")
    assert len(unreleased.splitlines()) < 40
    assert released.startswith(__version__)
    for entry in released.partition("\n## [")[0].splitlines():
        assert len(entry) <= 140, f"one line for each: {entry}"
        assert not entry.startswith(" "), f"one line for each: {entry}"


@cache
def code_names() -> tuple[set[str], dict[str, set[str]]]:
    """Return all names that the sources define, and the members of each class."""
    names: set[str] = set()
    members: dict[str, set[str]] = {}
    for path in (*SOURCE_FILES, *(ROOT / "lab").rglob("*.py")):
        names |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                inside = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                inside |= {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
                inside |= {each.name for each in node.body if hasattr(each, "name")}
                members.setdefault(node.name, set()).update(inside)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.arg):
                names.add(node.arg if isinstance(node, ast.arg) else node.name)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names, members


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_code_that_a_page_names_exists(page: str) -> None:
    names, members = code_names()
    files = {str(path.relative_to(ROOT)) for folder in CODE for path in (ROOT / folder).rglob("*.*")}
    text = (DOCS / page).read_text()
    if page == "glossary.md":  # the last column
        text = " ".join(row.rpartition(" | ")[2] for row in text.partition("## Columns of")[0].splitlines())
    for name in re.findall(r"`([\w/.]+)`", text.replace("/NAME.py", "")):
        if "." in name and name.rpartition(".")[2] in ("py", "html", "md", "toml"):
            assert any(f"/{path}".endswith(f"/{name}") for path in files) or (ROOT / name).exists(), name
        elif "/" not in name and (page == "glossary.md" or re.search(r"[A-Z_.]", name)):
            *owners, last = name.split(".")
            owner = owners[-1] if owners else ""
            known = members[owner] if owner[:1].isupper() else names | HTTP_FIELDS | set(POLICIES)
            assert last in known, name
            assert set(owners) <= names, name


FORMER_POLICIES = re.compile(r"\b(bounded|srpt|fair-srpt|sjf-rationed|hrrn|quartz|rr-sjf)\b")


@pytest.mark.parametrize("picture", sorted((DOCS / "screenshots").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_of_the_screen_name_policies_that_exist(picture: Path) -> None:
    assert FORMER_POLICIES.search(picture.read_text()) is None


DEFAULTS = (
    ("glossary.md", f"{DEFAULT_TAU_S:g} s until it is measured"),
    ("guide/run.md", f"for `--outage-grace` ({ServeConfig().outage_grace:g} s by default)"),
    ("how-to/beyond-one-machine.md", f"`--slots N` (default {MAX_IN_FLIGHT})"),
    ("guide/run.md", f"nothing after {SILENT_S:g} s"),
    ("how-to/choose-a-policy.md", f"`{DEFAULT_POLICY}` is the default"),
    ("faq.md", f"default, {DEFAULT_PORT}"),
)


@pytest.mark.parametrize(("page", "statement"), DEFAULTS)
def test_defaults_are_those_of_the_settings(page: str, statement: str) -> None:
    assert statement in " ".join((DOCS / page).read_text().split())
