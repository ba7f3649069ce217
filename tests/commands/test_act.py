"""`clairvoyant act`: what `top` can do, from a shell."""

import asyncio

from click.testing import CliRunner, Result

from clairvoyant_cli.commands.act import command
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from tests.fakes.raw_http import post
from tests.fakes.scripted_upstream import silent
from tests.fakes.serving import between, until


async def act(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command, [*arguments])


async def test_a_level_is_corrected_and_what_is_wrong_is_said() -> None:
    async with between(silent, policy="urgency") as (daemon, client):
        client.send(post("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "short"}]}'))
        state = await until(daemon, lambda s: len(s.running) == 1)
        where = ("--url", daemon.base_url)
        name = state.running[0].id
        done = await act("urgency", name, "0", *where)
        assert done.exception is None, done.output
        state = await until(daemon, lambda s: s.running[0].urgency == 0)
        assert state.running[0].urgency_by == "operator"
        wrong = (await act("urgency", f"id={name}", "level=9", *where)).exception
        assert "level" in str(wrong)
        assert isinstance(wrong, ClairvoyantError)
        assert wrong.exit_code == ExitCode.USAGE
        assert "KEY=VALUE" in str((await act("urgency", name, "1", "2", *where)).exception)
        assert "priority failed" in str((await act("priority", name, "-5", *where)).exception)
        assert (await act("tau", "tau_s=auto", *where)).exception is None
        assert (await act("cancel", f"id={name}", *where)).exception is None
