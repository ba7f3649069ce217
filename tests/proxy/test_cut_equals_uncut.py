"""Cut and continued in any way, an answer is the one that it would have been, or fails for all to see."""

from collections.abc import Sequence

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from tests.fakes.chaos import cut_chaos
from tests.fakes.cut_cases import faults
from tests.fakes.dialects import DIALECTS, Dialect

CASES = 120
"""For each dialect: `python -m tests.perf.perf_soak cuts` runs more."""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_client_reads_the_uncut_answer_or_sees_a_failure(dialect: Dialect) -> None:
    found = await faults(dialect, range(CASES))
    assert not found, "\n".join(found[:5])


CUTTING = ("boost", "boost", "urgency")


@pytest.mark.parametrize(
    ("policies", "servers", "slots"),
    [(CUTTING, 1, 1), (CUTTING, 2, 1), (("boost",), 1, 2), (CUTTING, 2, 2)],
    ids=["one", "two servers", "two slots", "two of two"],
)
def test_all_end_once_and_read_what_was_written(policies: Sequence[str], servers: int, slots: int) -> None:
    async def scene() -> None:
        async with cut_chaos(policies, servers=servers, slots=slots) as it:
            await it.run(80)
            faults, cuts = it.faults(), it.daemon.journal.counts["cuts"]
        assert not faults, it.told
        assert cuts > 8, it.told

    run_virtually(scene())
