"""The version of the code that a record names."""

from benchmark.launch import environment


def test_the_record_says_that_there_was_no_git(monkeypatch, tmp_path):
    """A checkout without git on the PATH must not pass for the released version."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "version", lambda name: "0.1.0")
    assert environment.code_version() == "0.1.0-unknown (a checkout, and no git to ask)"
    (tmp_path / ".git").rmdir()
    assert environment.code_version() == "0.1.0"


def test_a_checkout_is_described_and_marked_if_it_differs(monkeypatch, tmp_path):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for changes, expected in (("", "v1-3-gabc"), (" M benchmark/run.py", "v1-3-gabc-dirty")):
        answers = {"describe": "v1-3-gabc", "status": changes}
        monkeypatch.setattr(environment, "_git", lambda *command, answers=answers: answers[command[0]])
        assert environment.code_version() == expected
