"""Cut and continued in any way, an answer is the one that it would have been, or fails for all to see."""

import pytest

from tests.fakes.cut_cases import faults
from tests.fakes.dialects import DIALECTS, Dialect

CASES = 300
"""For each dialect: `python -m tests.perf.perf_soak cuts` runs more."""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_client_reads_the_uncut_answer_or_sees_a_failure(dialect: Dialect) -> None:
    found = await faults(dialect, range(CASES))
    assert not found, "\n".join(found[:5])
