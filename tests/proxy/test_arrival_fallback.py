"""Arrival order while upper bounds do not hold."""

from clairvoyant_cli.proxy.queue.operation import MIN_JUDGED, Coverage, Operation
from tests.fakes.daemon_parts import daemon_parts


def reviewed(policy: str) -> tuple[Operation, Coverage, list[str]]:
    """Return what is operated under a policy whose upper bounds do not hold, and what was logged."""
    parts, coverage, said = daemon_parts(), Coverage(), list[str]()
    operation = Operation(parts.dispatcher, coverage, lambda: 0.0, lambda _, news: said.append(news))
    operation.choose_policy(policy)
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    operation.review_predictor()
    return operation, coverage, said


def hold_again(operation: Operation, coverage: Coverage) -> None:
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    operation.review_predictor()


async def test_the_operators_choice_holds() -> None:
    operation, coverage, _ = reviewed("quartz")
    operation.choose_policy("sjf")
    operation.review_predictor()
    assert operation.policy == "sjf"
    hold_again(operation, coverage)
    assert operation.policy == "sjf"


async def test_other_policies_go_by_no_quantiles() -> None:
    assert reviewed("boost")[0].policy == "boost"
