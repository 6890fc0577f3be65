"""The pages of the app, in the order of its menu; the first is shown where the address names none."""

from dashboards.app.pages import attention_speculation, capacity, replay, roofline, run_explorer, speculation, what_if

PAGES = (
    what_if.PAGE,
    roofline.PAGE,
    speculation.PAGE,
    attention_speculation.PAGE,
    capacity.PAGE,
    run_explorer.PAGE,
    replay.PAGE,
)
