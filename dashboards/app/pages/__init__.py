"""The pages of the app, in the order of its menu; the first is shown where the address names none."""

from dashboards.app.pages import (
    attention_speculation,
    capacity,
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
    speculation.PAGE,
    attention_speculation.PAGE,
    roofline.PAGE,
    run_explorer.PAGE,
    replay.PAGE,
)
PAGES = (start_page(ANSWERS), *ANSWERS)
