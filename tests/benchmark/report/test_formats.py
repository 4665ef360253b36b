"""Frames and texts for readers, spreadsheets and LaTeX: nothing in them is taken for markup or a formula."""

import pandas as pd

from benchmark.report.formats import csv_text, latex_table, markdown, pipe_table


def test_latex_has_signs_of_its_own_fonts_and_comments_of_one_line() -> None:
    text = latex_table(["one\ntwo"], ["p < 0.001"], [["**±–Δ** 5 %"]])
    assert text.startswith("% one two\n")
    assert r"\textbf{$\pm$--$\Delta$} 5 \%" in text and r"p \ensuremath{<} 0.001" in text


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
