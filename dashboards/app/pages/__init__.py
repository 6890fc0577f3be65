"""The pages of the app, in the order of its menu."""

from dashboards.app.context import Page
from dashboards.app.pages import attention_speculation, capacity, replay, roofline, run_explorer, speculation, what_if


def pages() -> tuple[Page, ...]:
    """All pages; the first is shown where the address names none."""
    return (
        what_if.PAGE,
        roofline.PAGE,
        speculation.PAGE,
        attention_speculation.PAGE,
        capacity.PAGE,
        run_explorer.PAGE,
        replay.PAGE,
    )
