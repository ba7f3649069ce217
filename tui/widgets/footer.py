"""The footer, whose hints can be clicked."""

from textual import events

from tui.panels.footer import footer, key_at, of
from tui.widgets.canvas import Canvas


class Footer(Canvas):
    """Does on a click what the key does that stands there."""

    def __init__(self) -> None:
        super().__init__(footer, name="footer", of=of)

    async def on_click(self, event: events.Click) -> None:
        """Do what the key does."""
        key = key_at(self.view, event.x) if self.view is not None else None
        if key is not None:
            await self.app.run_action(key.action, self.screen)
