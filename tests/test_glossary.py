"""The glossary is the source of the tooltips."""

from forerun.tables import Table, definition, glossary_text


def test_labels_have_the_definition_of_their_longest_term():
    assert definition("p99 TTFT").startswith("TTFT, time to first token: ")
    assert definition("mean_e2el_ms").startswith("E2E latency")
    assert definition("Draft tokens K").startswith("Draft tokens, K: ")
    assert definition("Prefix cache hits").startswith("Prefix cache hits: ")
    assert definition("output tokens/s") is None


def test_every_entry_of_the_glossary_is_a_definition():
    headings = [line for line in glossary_text().splitlines() if line.startswith("**")]
    assert len(headings) > 40
    for heading in headings:
        name = heading.strip("*").replace("`", "")
        assert definition(name).startswith(name.split(",")[0]), name


def test_a_heading_of_a_table_explains_itself():
    page = Table("", ("metric", "p99 TTFT"), [["Headroom", 1.0]]).html()
    assert '<abbr title="TTFT, time to first token: ' in page
    assert '<abbr title="Headroom: ' in page
    assert page.count("<abbr") == 2
