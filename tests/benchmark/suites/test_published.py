"""Published values, and those that other papers report."""

import pytest

from benchmark.suites.published import read_others, read_published
from datamodules.common.errors import ConfigError


def test_others_values_are_read_by_column(tmp_path):
    path = tmp_path / "others.csv"
    path.write_text('method,dataset,setting,value,std,seeds,source\nM,D,"a, b",50.10,,,P\n')
    line = {"method": "M", "dataset": "D", "setting": "a, b", "value": "50.10", "std": "", "seeds": "", "source": "P"}
    assert read_others(path) == [line]
    path.write_text("method,dataset,setting,value,std,seeds\nM,D,a,50.10,,\n")
    with pytest.raises(ConfigError, match=r"others\.csv.*\bsource\b"):
        read_others(path)
    path.write_text("method,dataset,setting,value,std,seeds,source\nM,D,a,much,,,P\n")
    with pytest.raises(ConfigError, match=r"others\.csv, line 2: .*'much'"):
        read_others(path)


def test_published_spreads(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("table,dataset,method,M,metric,value,std\n1,A,low,1,acc,50.1,2.0\n1,A,low,2,acc,51.0,\n")
    where = "1", "A", "low", (("M", "1"),)
    values = read_published(path)
    assert (values[*where, "acc"], values[*where, "acc std"]) == ("50.1", "2.0")
    assert len(values) == 3
