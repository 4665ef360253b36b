"""Frames and texts for readers, spreadsheets and LaTeX: nothing in them is taken for markup or a formula."""

import pandas as pd

from benchmark.report.formats import cell_text, csv_text, latex_table, latex_text, markdown, numeric, pipe_table


def test_only_columns_of_numbers_become_numbers() -> None:
    """Printed ones too; not those that are named."""
    frame = pd.DataFrame({"n": ["1", None], "word": ["1", "none"], "id": ["1", "2"]})
    assert [column.dtype == float for _, column in numeric(frame, ["id"]).items()] == [True, False, False]


def test_texts_of_single_values() -> None:
    assert [cell_text(value) for value in (None, float("nan"), 0.5, 3, "a")] == ["", "", "0.50", "3", "a"]
    assert latex_text("±−²") == "$\\pm$$-$²"
    assert latex_text("p < 0.001 > |a|") == "p $<$ 0.001 $>$ $|$a$|$"  # LaTeX's own fonts have others there
    assert pipe_table(["a"], [["x|y\nz"]]).splitlines()[-1] == r"| x\|y z |"


def test_a_label_for_references_has_only_what_latex_takes_there() -> None:
    """A percent sign would begin a comment, and leave the brace open."""
    frame = pd.DataFrame({"method": ["a"]})
    assert r"\label{tab:text-board-1-News-10-}" in latex_table(frame, "", "text-board-1-News (10%)")
    assert r"\label{tab:rscfed-paper-1_b}" in latex_table(frame, "", "rscfed-paper-1_b")


def test_a_label_is_no_formula_in_a_spreadsheet() -> None:
    """Numbers, printed ones too, and all other texts stay as they are."""
    frame = pd.DataFrame({"method": ['=HYPERLINK("http://a.b")', " =1+1", "a=b", "-"], "@n": [-1.5, 2.0, None, 1.0]})
    frame["published"] = ["-0.50", "+1", None, "@a"]
    assert csv_text(frame).splitlines() == [
        "method,'@n,published",
        '"\'=HYPERLINK(""http://a.b"")",-1.5000,-0.50',
        "' =1+1,2.0000,+1",
        "a=b,,",
        "-,1.0000,'@a",
    ]


def test_a_text_becomes_no_html_link_or_picture_in_markdown() -> None:
    hostile = "<img src=x> ![a](http://b) [c](d) \\[e](f)\n# g\x1b[2J"
    assert markdown(hostile) == r"\<img src=x> !\[a\](http://b) \[c\](d) \\\[e\](f) # g?\[2J"
    assert markdown("p < 0.05, a <= b") == "p < 0.05, a <= b"
    assert "<img" not in pipe_table([hostile], [[hostile]]).replace(r"\<", "")
