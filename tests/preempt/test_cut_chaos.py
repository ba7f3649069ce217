"""Leavers, dead servers and an operator, while answers are cut and go on: nothing is lost or leaked."""

from collections.abc import Sequence

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from tests.fakes.chaos import cut_chaos

CUTTING = ("boost", "boost", "urgency")


@pytest.mark.parametrize(
    ("policies", "servers", "slots"),
    [(CUTTING, 1, 1), (CUTTING, 2, 1), (("boost",), 1, 2), (("rr", "rr-sjf", "boost"), 2, 1)],
    ids=["one", "two servers", "two slots", "turns"],
)
def test_all_end_once_and_read_what_was_written(policies: Sequence[str], servers: int, slots: int) -> None:
    async def scene() -> None:
        async with cut_chaos(policies, servers=servers, slots=slots) as it:
            await it.run(80)
            faults, cuts = it.faults(), it.daemon.stats.cuts
        assert not faults, it.told
        assert cuts > 8, it.told

    run_virtually(scene())
