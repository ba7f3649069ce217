"""Draws the servers and their loaded models."""

from clairvoyant_cli.state.snapshot import BackendState, EngineState, LoadedModel
from tui.formatting import bar, count, model_name, rate, size
from tui.styled_text import Line, Tone, cells, ends
from tui.view_state import ViewState

_STATE: dict[str, tuple[str, Tone]] = {"up": ("●", "good"), "loading": ("◐", "warn"), "down": ("○", "alert")}


def facts(view: ViewState) -> Line:
    swaps = sum(backend.swaps_total for backend in view.state.backends)
    return Line(f" {swaps} swap{'s' * (swaps != 1)} " if swaps else "", "soft")


def rows(view: ViewState) -> int:
    return len(body(view, 0, 0))


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """The servers in trouble first: they are seen however low the panel is."""
    lines: list[Line] = []
    for backend in sorted(view.state.backends, key=lambda each: (each.state == "up", each.state != "down")):
        lines.append(_backend(backend, width))
        if backend.self_test:
            lines.append(Line(f"  {backend.self_test}", "soft"))
        lines += [_model(model, width) for model in backend.models]
        if backend.engine is not None:
            lines.append(_engine(backend.engine, width))
        elif backend.state == "up" and not backend.models and not backend.busy:
            lines.append(Line("  no model loaded", "faint"))
    return lines


def _backend(backend: BackendState, width: int) -> Line:
    sign, tone = _STATE.get(backend.state, ("?", "warn"))
    line, right = Line(f"{sign} ", tone).add(backend.name), Line()
    if backend.state == "up":
        kind = "" if backend.kind == backend.name else f" {backend.kind}"
        line.add(f"{kind} {backend.version}".rstrip(), "soft")
        if backend.decode_tokens_per_s:
            right.add(rate(backend.decode_tokens_per_s)).add(" tok/s", "faint")
    else:
        line.add(f"  {backend.state}", tone).add(f" {backend.detail}", "soft")
    return ends(line.add(f"  {backend.standing}" * bool(backend.standing), "warn"), right, width)


def _engine(engine: EngineState, width: int) -> Line:
    line, right = Line("  ").add(count(engine.running)).add(" run, ", "faint"), Line()
    line.add(count(engine.waiting)).add(" wait inside", "faint")
    if engine.preemptions:
        line.add(f", {count(engine.preemptions)}").add(" preempted", "faint")
    if engine.kv_used is not None:
        right = bar(engine.kv_used, 4).add(f" KV {engine.kv_used:.0%}", "soft")
    return ends(line, right, width)


def _model(model: LoadedModel, width: int) -> Line:
    right = Line()
    if model.vram_bytes is not None and model.size_bytes:
        right = bar(model.vram_bytes / model.size_bytes, 4).add(f" {size(model.vram_bytes)}")
    elif model.size_bytes:
        right = Line(size(model.size_bytes))
    if model.context and width >= 60:
        right.add(f"  ctx {model.context}", "soft")
    fits = cells(model.name) + right.width + 3 <= width
    return ends(Line("  ").add(model.name if fits else model_name(model.name)), right, width)
