"""What a front end asks for on its own is told from what a person asks."""

import pytest

from clairvoyant_cli.protocols.chores import BY_NAME, chore_of
from predictor.record import PromptView, Task

TITLE = "### Task:\nGenerate a concise title summarizing the chat history.\n### Guidelines:\n"
OLD_TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
AGENT_TITLE = "You are a title generator. You output ONLY a thread title. Nothing else."
SUGGESTION = "[SUGGESTION MODE: Suggest what the user might naturally type next into the agent.]"
QUERIES = (
    "### Task:\nAnalyze the chat history to determine the necessity of generating search queries, in the"
)


@pytest.mark.parametrize(
    ("named", "view", "chore"),
    [
        (None, PromptView(TITLE), "title_generation"),
        (None, PromptView(OLD_TITLE), "title_generation"),
        (None, PromptView(QUERIES), "query_generation"),
        (None, PromptView("Query: the weather?", system="Available Tools: [{}]"), "function_calling"),
        (None, PromptView("### Task:\nGenerate a concise report on whales"), ""),
        (None, PromptView(f"What is this?\n{TITLE}"), ""),
        (None, PromptView(TITLE, task=Task.COMPLETION), ""),
        (b"", PromptView(TITLE), ""),
        (b"tags_generation", PromptView("Schreibe drei Schlagworte"), "tags_generation"),
        (None, PromptView("Generate a title:", system=AGENT_TITLE), "agent_title"),
        (None, PromptView("Fix it", system=AGENT_TITLE, tools=9), ""),
        (None, PromptView(SUGGESTION, system="You are an agent", tools=9), "agent_suggestion"),
        (b"weekly digest", PromptView("Digest the week"), "weekly digest"),
    ],
)
def test_a_chore_is_known_by_its_name_or_by_how_it_begins(
    named: bytes | None, view: PromptView, chore: str
) -> None:
    found = chore_of(named, view)
    assert (found.name if found else "") == chore


def test_a_chore_is_known_by_the_session_that_it_claims() -> None:
    found = chore_of(None, PromptView("Fix the build"), b"title-ses_1")
    assert found is not None
    assert found.name == "agent_title"
    assert chore_of(None, PromptView("Fix the build"), b"ses_title-1") is None


def test_only_background_chores_give_way() -> None:
    behind = {name for name, chore in BY_NAME.items() if not chore.interactive}
    assert behind == {
        "batch",
        "title_generation",
        "tags_generation",
        "follow_up_generation",
        "emoji_generation",
        "agent_title",
        "agent_recap",
        "agent_suggestion",
    }
    unheard_of = chore_of(b"weekly digest", PromptView("Digest the week"))
    assert unheard_of is not None
    assert unheard_of.interactive
