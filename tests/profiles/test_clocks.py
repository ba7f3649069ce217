"""Two clocks of one machine: one that is set, and one that only goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from profiles.clocks import Clocks, system_clocks
from tests.fakes.scripted_clocks import DAY, HOUR, NOON, ScriptedClocks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine() -> ScriptedClocks:
    """A machine at noon, whose clock is right."""
    return ScriptedClocks()


def test_two_clocks_are_read_together_or_again() -> None:
    steady = iter([10.0, 28_810.0, 28_811.0, 28_811.001])
    now = Clocks(lambda: NOON, lambda: next(steady), "b").now()
    assert now.wall_s == NOON
    assert now.steady_s == pytest.approx(28_811.0005)


def test_all_processes_of_a_machine_share_its_steady_clock() -> None:
    program = (
        "from profiles.clocks import system_clocks\n"
        "now = system_clocks().now()\n"
        "print(now.boot, now.steady_s)"
    )
    before = system_clocks().now()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = system_clocks().now()
    boot, steady_s = done.stdout.split()
    assert boot == before.boot == after.boot
    assert before.steady_s < float(steady_s) < after.steady_s


def test_a_daemon_dates_by_the_clock_of_now(machine: ScriptedClocks) -> None:
    request_stats = RequestStats(Journal(lambda: machine.loop_s, wall=lambda: machine.wall_s))
    for disturb, by_s in ((machine.wait, 0.0), (machine.sleep, 8 * HOUR), (machine.set_by, -3 * DAY)):
        disturb(by_s)
        machine.wait(5.0)
        assert request_stats.journal.at(machine.loop_s) == machine.wall_s
        assert request_stats.journal.at(machine.loop_s - 2.0) == machine.wall_s - 2.0
