"""The runs of a plan, and published values."""

import pytest

from benchmark.suites.plan import read_published
from datamodules.common.errors import ConfigError


def test_a_bad_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("table,dataset,method,value\n1,A,low,50.10\n")
    with pytest.raises(ConfigError, match=r"toy\.csv.*\bmetric\b"):
        read_published(path)
    for line, told in (
        ("acc,much", "'much'"),
        ("acc,inf", "'inf'"),
        ("acc,", "''"),
        ("acc", "None"),
        ("acc,1,2", "more values"),
    ):
        path.write_text(f"table,dataset,method,metric,value\n1,A,low,auc,1\n1,A,low,{line}\n")
        with pytest.raises(ConfigError, match=rf"toy\.csv, line 3: .*{told}"):
            read_published(path)
    path.write_text("table,dataset,method,metric,value\n" + "1,A,low,acc,1\n" * 2)
    with pytest.raises(ConfigError, match=r"line 3: .* 1/A/low, acc: .* twice"):
        read_published(path)


def test_published_spreads(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("table,dataset,method,M,metric,value,std\n1,A,low,1,acc,50.1,2.0\n1,A,low,2,acc,51.0,\n")
    where = "1", "A", "low", (("M", "1"),)
    values = read_published(path)
    assert (values[*where, "acc"], values[*where, "acc std"]) == ("50.1", "2.0")
    assert len(values) == 3
