"""Texts for readers and LaTeX: nothing in them is taken for markup."""

from benchmark.report.formats import latex_table, markdown, pipe_table


def test_latex_has_signs_of_its_own_fonts_and_comments_of_one_line() -> None:
    text = latex_table(["one\ntwo"], ["p < 0.001"], [["**±–Δ** 5 %"]])
    assert text.startswith("% one two\n")
    assert r"\textbf{$\pm$--$\Delta$} 5 \%" in text and r"p \ensuremath{<} 0.001" in text


def test_a_text_becomes_no_html_link_or_picture_in_markdown() -> None:
    hostile = "<img src=x> ![a](http://b) [c](d) \\[e](f)\n# g\x1b[2J"
    assert markdown(hostile) == r"\<img src=x> !\[a\](http://b) \[c\](d) \\\[e\](f) # g?\[2J"
    assert markdown("p < 0.05, a <= b") == "p < 0.05, a <= b"
    assert "<img" not in pipe_table([hostile], [[hostile]]).replace(r"\<", "")
