"""Requests whose answer's length any engineer would predict, read from `obvious_lengths.txt`."""

from dataclasses import dataclass
from pathlib import Path

from predictor.record import PromptView, Turn

_PARAGRAPH = (
    "The council met on {day} to hear what had become of the harbour wall. Its builder, {name}, said that "
    "the stones had been laid by hand and would last, while the fishermen complained that the gap let the "
    "swell in. A surveyor had measured the sea bed and found it {depth} feet deeper than the charts told. "
    "After much talk the members agreed to pay for a second survey, to close the quay in the winter, and to "
    "ask the province for a loan. Those who lived nearest the water were the least content, for their "
    "cellars flood each spring and nobody could say whether the plan would change that. "
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NAMES = ("Mr Aldous", "Mrs Reyes", "Dr Okafor", "Captain Lund", "Miss Petrie", "old Tom Wick")

ARTICLE = "\n\n".join(
    _PARAGRAPH.format(day=day, name=name, depth=depth)
    for depth, (day, name) in enumerate(zip(_DAYS, _NAMES, strict=True), start=3)
)
CODE = "\n\n".join(
    f"def step_{number}(state, value):\n"
    f'    """Apply step {number} to the state."""\n'
    f"    if value is None or value < {number}:\n"
    f"        return state\n"
    f"    total = sum(item.weight for item in state.items if item.kind == {number})\n"
    f"    state.log.append((value, total))\n"
    f"    return state.replace(total=total + value, step={number})"
    for number in range(14)
)
TABLE = "id,name,city,amount,total\n" + "\n".join(
    f"{number},{name},{day}ville,{number * 37},{number * 411}"
    for number, (name, day) in enumerate([(name, day) for name in _NAMES for day in _DAYS * 2], start=1)
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request, the initial of its length class, and whether it says its length itself."""

    style: str
    size: str
    says_so: bool
    view: PromptView


def read_requests() -> list[Request]:
    requests, style = [], ""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            style = line[1:-1]
        elif line and not line.startswith("#"):
            mark, prompt = line[:2], line[2:].strip()
            requests.append(Request(style, mark[0], mark[1] == "!", _view(prompt, style)))
    return requests


def _view(line: str, style: str) -> PromptView:
    for name, material in (("{article}", ARTICLE), ("{code}", CODE), ("{table}", TABLE)):
        line = line.replace(name, material)
    *earlier, prompt = line.replace("\\n", "\n").split(" << ")
    history = tuple(Turn(("user", "assistant")[place % 2], text) for place, text in enumerate(earlier))
    return PromptView(prompt, history=history, tools=3 if style == "agent" else 0)
