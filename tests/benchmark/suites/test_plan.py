"""The runs of a plan, and published values."""

import pytest

from benchmark.suites.plan import read_published
from datamodules.common.errors import ConfigError


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["dataset,method,metric,value", "A,low,acc,1"], "line 2: .*table"),
        (["table,dataset,method,metric,value", "1,A,low,auc,1", "1,A,low,acc,much"], "line 3: .*'much'"),
        (["table,dataset,method,metric,value", "1,A,low,acc,inf"], "line 2: .*'inf'"),
        (["table,dataset,method,metric,value", "1,A,low,acc"], "line 2: "),
        (["table,dataset,method,metric,value", "1,A,low,acc,1,2"], "line 2: .*more values"),
        (["table,dataset,method,metric,value", "1,A,low,acc,1", "1,A,low,acc,1"], "line 3: .* 1/A/low, acc: .* twice"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, lines, told):
    path = tmp_path / "toy.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=rf"toy\.csv, {told}"):
        read_published(path)
