"""Records in one file: the same bytes again, all of an archive or nothing, and nothing outside its folder."""

import functools
import gzip
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmark.cli import main
from benchmark.config import Run, RunConfig, Runtime
from benchmark.registry import ClassSpec
from benchmark.runs.archive import FILES, pack, unpack
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import read_record, read_rows
from benchmark.runs.states import state
from datamodules.common.errors import ConfigError, RunError

FACTS = {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []}


def run(results: Path, seed: int = 1, scale: str = "board", rounds: int = 2, acc: float = 50.0) -> Path:
    planned = Run.of(
        RunConfig(
            ClassSpec("fedavg"),
            ClassSpec("digits"),
            rounds=2,
            seed=seed,
            scale=scale,
            runtime=Runtime(results_dir=str(results)),
        )
    )
    one = RunFolder(planned.folder)
    one.open(planned, FACTS)
    one.rewind(0)
    for number in range(rounds):
        one.append({"round": number, "acc": acc + number})
    if rounds == 2:
        one.finish()
    (one.path / "weights.pt").write_bytes(b"large")
    return one.path


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """An archive of two complete runs; there are also one of another scale, and one that is not complete."""
    for seed in (1, 2):
        run(tmp_path / "made", seed)
    run(tmp_path / "made", 3, "quick")
    run(tmp_path / "made", 4, rounds=1)
    assert pack(tmp_path / "made", tmp_path / "board.tar.gz", ["board"])[0] == 2
    return tmp_path / "board.tar.gz"


def tar(file: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> str:
    with tarfile.open(file, "w:gz") as made:
        for name, content in members.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
            made.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return str(file)


def files(run_path: Path, name: str = "") -> dict[str, bytes]:
    return {f"runs/{name or run_path.name}/{file}": (run_path / file).read_bytes() for file in FILES}


def left(results: Path) -> list[str]:
    """All files below a folder."""
    return sorted(str(file.relative_to(results)) for file in results.rglob("*") if file.is_file())


def test_what_is_imported_is_what_was_exported(board, tmp_path):
    """The complete runs of the scale with their three files; once more changes nothing."""
    there = tmp_path / "there"
    assert unpack(str(board), there) == (2, 0)
    assert len(left(there)) == 2 * len(FILES)
    for path in (there / "runs").iterdir():
        made = tmp_path / "made" / "runs" / path.name
        assert state(path) == "complete" and read_record(path) == read_record(made) and read_rows(path)
        assert all((path / name).read_bytes() == (made / name).read_bytes() for name in FILES)
    assert unpack(str(board), there) == (0, 2)


def test_a_copy_of_a_run_is_not_exported_since_nobody_could_import_it(tmp_path):
    path = run(tmp_path / "made")
    shutil.copytree(path, path.with_name(f"{path.name}.before"))
    with pytest.raises(ConfigError, match=rf"{path.name}\.before: it holds run \w+, .*; move it away"):
        pack(tmp_path / "made", tmp_path / "board.tar.gz")
    assert not (tmp_path / "board.tar.gz").exists()


def test_equal_records_give_equal_bytes(board, tmp_path):
    """Also where they lie elsewhere, are newer, and were put there in another order."""
    unpack(str(board), tmp_path / "there")
    _, digest = pack(tmp_path / "there", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == board.read_bytes()
    assert unpack(str(board), tmp_path / "third", digest) == (2, 0)
    with pytest.raises(ConfigError, match=f"its SHA-256 is {digest}, not 0000; it is a different archive"):
        unpack(str(board), tmp_path / "fourth", "0000")


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "runs/../../evil", "runs/a/../b/record.json", "runs/a/weights.pt", "runs/.a/record.json"],
)
def test_nothing_is_written_outside_of_runs(tmp_path, name):
    made = run(tmp_path / "made")
    file = tar(tmp_path / "bad.tar.gz", {**files(made), name: b"{}"})
    before = left(tmp_path)
    with pytest.raises(ConfigError, match=r"is refused: archives hold runs/<run>/record\.json and the like"):
        unpack(file, tmp_path / "there")
    assert left(tmp_path) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("runs/a-1/record.json")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(ConfigError, match=r"runs/a-1/record.json"):
        unpack(tar(tmp_path / "bad.tar.gz", {"": member}), tmp_path / "there")
    assert not left(tmp_path / "there")


def test_what_would_fill_the_disk_is_refused(board, tmp_path):
    with pytest.raises(ConfigError, match="is refused: it is too large"):
        unpack(str(board), tmp_path / "there", most=board.stat().st_size)
    with pytest.raises(ConfigError, match="it has more than 10 bytes"):
        unpack(str(board), tmp_path / "there", most=10)


@pytest.mark.parametrize("kept", [0, 1, 100, -200])
def test_a_torn_archive_is_one_error(board, tmp_path, kept):
    board.write_bytes(board.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"not an archive of records, or damaged|cannot be read"):
        unpack(str(board), tmp_path / "there")
    assert not left(tmp_path / "there")


@pytest.mark.parametrize("place", ["a header", "a configuration"])
def test_a_flipped_bit_is_found_wherever_it_is(board, tmp_path, place):
    """Without the checksum, a damaged header would end the archive early, and no digest covers ``config.yaml``."""
    packed = board.read_bytes()
    content = bytearray(gzip.decompress(packed))
    with tarfile.open(board) as made:
        member = [one for one in made if one.name.endswith("config.yaml")][-1]
    content[member.offset if place == "a header" else member.offset_data] ^= 1
    board.write_bytes(gzip.compress(content)[:-8] + packed[-8:])  # the checksum is that of the archive as it was made
    with pytest.raises(ConfigError, match="not an archive of records, or damaged"):
        unpack(str(board), tmp_path / "there")
    assert not left(tmp_path / "there")


def test_a_header_that_was_never_whole_does_not_end_an_archive_early(board, tmp_path):
    content = bytearray(gzip.decompress(board.read_bytes()))
    with tarfile.open(board) as made:
        content[made.getmembers()[3].offset] ^= 1
    board.write_bytes(gzip.compress(content))
    with pytest.raises(ConfigError, match="not an archive of records, or damaged"):
        unpack(str(board), tmp_path / "there")


def test_an_old_record_without_a_digest_is_compared_by_what_it_says(board, tmp_path):
    """Records of schema 1 have none."""

    def old(results, sent):
        path = run(results)
        record = json.loads((path / "record.json").read_text())
        del record["digest"]
        (path / "record.json").write_text(json.dumps({**record, "schema_version": 1, "bytes_up": sent}))

    old(tmp_path / "made", 5)
    pack(tmp_path / "made", board, ["board"])
    old(tmp_path / "same", 5)
    assert unpack(str(board), tmp_path / "same") == (1, 1)
    old(tmp_path / "other", 6)
    with pytest.raises(RunError, match="differs from the run of that name"):
        unpack(str(board), tmp_path / "other")


def test_a_run_that_differs_keeps_its_place_and_nothing_is_imported(board, tmp_path):
    there = tmp_path / "there"
    own = run(there, seed=2, acc=60.0)
    before = files(own)
    with pytest.raises(RunError, match=rf"{own.name} differs from the run of that name in {board}"):
        unpack(str(board), there)
    assert files(own) == before and [path.name for path in (there / "runs").iterdir()] == [own.name]


def test_a_run_that_goes_on_keeps_its_place(board, tmp_path):
    own = run(tmp_path / "there", seed=2, rounds=1)
    with pytest.raises(RunError, match=rf"{own.name} holds a run that is stale; finish or delete it"):
        unpack(str(board), tmp_path / "there")


def test_only_whole_records_under_their_own_names_are_imported(tmp_path):
    made, open_end = run(tmp_path / "made"), run(tmp_path / "made", seed=4, rounds=1)
    forged = files(made)
    (name,) = (name for name in forged if name.endswith("record.json"))
    record = json.loads(forged[name])
    record["best"]["acc"] = 99.0
    for members, message in (
        ({**forged, name: json.dumps(record).encode()}, "is damaged: its record is not what the run wrote"),
        (files(open_end), "is not complete"),
        (files(made, "fedavg-digits-0123456789"), f"has the record of run {record['run_id']}"),
        ({name: forged[name]}, r"has no config\.yaml"),
    ):
        with pytest.raises(RunError, match=message):
            unpack(tar(tmp_path / "bad.tar.gz", members), tmp_path / "there")
        assert not left(tmp_path / "there")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def test_an_archive_is_fetched_by_its_address(board, tmp_path, server, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    there = str(tmp_path / "there")
    assert main(["records", "import", f"{server}/{board.name}", "--results-dir", there]) == 0
    assert capsys.readouterr().out == f"imported 2 runs into {there}/runs; 0 were there already\n"
    assert main(["records", "import", f"{server}/none.tar.gz", "--results-dir", there]) == 2
    assert f"error: {server}/none.tar.gz: cannot be read: " in capsys.readouterr().err
    assert main(["records", "import", f"{server}/my board.tar.gz", "--results-dir", there]) == 2
    assert f"error: {server}/my board.tar.gz: cannot be read: " in capsys.readouterr().err


def test_the_command_says_what_it_has_done_and_what_is_wrong(board, tmp_path, capsys):
    made, file = str(tmp_path / "made"), str(tmp_path / "new" / "board.tar.gz")
    assert main(["records", "export", file, "--results-dir", made, "--scales", "board,quick"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"wrote {file}: 3 runs, ")
    assert main(["records", "import", file, "--results-dir", str(tmp_path / "x"), "--sha256", out.split()[-1]]) == 0
    for words, message in (
        (["export", file, "--results-dir", made, "--scales", "paper"], "there is no complete run of scale paper"),
        (["import", str(tmp_path / "none")], "cannot be read: No such file or directory; give the path"),
        (["import", file, "--scales", "board"], "records import takes no --scales"),
        (["export", file, "--sha256", "0"], "records export takes no --sha256"),
    ):
        assert main(["records", *words]) == 2
        assert message in capsys.readouterr().err
