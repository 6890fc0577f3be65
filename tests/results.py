"""What every result of the Python interface can do."""

import pickle
from html import escape


def checked_result(result, folder, *files):
    """The names of the files that a result saves, once it travels, prints itself and draws its figures."""
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.document == result.document
    assert len(repr(result)) < 2000
    page = result._repr_html_()
    assert "<table" in page
    conclusion = getattr(result, "conclusion", None)
    assert conclusion is None or escape(conclusion) in page
    assert result.table().rows
    assert [table.title for table in result.tables()]
    assert result.to_arrow().num_rows >= 1
    for name in result.figures:
        assert result.figure(name).data
    names = {path.name for path in result.save(folder).iterdir()}
    assert names >= set(files)
    return names
