"""Pages of the app in menu order; the first is shown if the URL names no page."""

from dashboards.app.pages import (
    attention_speculation,
    capacity,
    chips,
    replay,
    roofline,
    run_explorer,
    speculation,
    traffic,
    what_if,
)
from dashboards.app.pages.start import start_page

ANSWERS = (
    what_if.PAGE,
    traffic.PAGE,
    capacity.PAGE,
    chips.PAGE,
    speculation.PAGE,
    attention_speculation.PAGE,
    roofline.PAGE,
    run_explorer.PAGE,
    replay.PAGE,
)
PAGES = (start_page(ANSWERS), *ANSWERS)
