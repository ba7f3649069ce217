"""Formats numbers for people; an unknown one is a dash."""


def figure(value: float | None, form: str) -> str:
    """Return a number in a format such as `.3f`."""
    return "-" if value is None else format(value, form)


def seconds(value: float | None) -> str:
    """Return a measured time in seconds, however long, so that times can be compared."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value:.3f} s"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def span(value_s: float) -> str:
    """Return a time in hours, minutes and seconds."""
    if value_s < 10:
        return f"{value_s:.1f} s"
    minutes, rest = divmod(round(value_s), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
