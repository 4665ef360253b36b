"""Archives: the records of many runs in one file, for releases and installed packages.

An archive is a gzipped tar of ``runs/<run>/`` with ``config.yaml``, ``metrics.jsonl`` and ``record.json`` of complete
runs, and nothing else. Equal records give equal bytes.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmark.files import read_bytes
from benchmark.runs.records import digest, read_record, read_rows
from benchmark.runs.states import look
from datamodules.common.errors import ConfigError, RunError

FILES = ("config.yaml", "metrics.jsonl", "record.json")
MEMBER = re.compile(r"runs/(?P<run>\w[\w.-]*)/(?P<file>config\.yaml|metrics\.jsonl|record\.json)", re.ASCII)
MOST = 1 << 30  # maximum bytes of an archive and its content; a leaderboard of 1000 runs takes a tenth
BLOCK = 1 << 20  # bytes read at once
TIMEOUT = 60.0  # seconds without an answer from the server


def pack(results: Path, file: Path, scales: Collection[str] = ()) -> tuple[int, str]:
    """Write the complete runs below ``results`` to an archive.

    Args:
        results: folder that holds ``runs/``.
        file: the archive; replaced if it exists.
        scales: scales of the runs; empty: all.

    Returns:
        The number of runs, and the archive's SHA-256.

    Raises:
        ConfigError: there are no such runs, or the name of a folder is not that of its run.
        RunError: a record is damaged.
        OSError: the archive cannot be written.
    """
    chosen = []
    for path in sorted(one.parent for one in (results / "runs").glob("*/record.json")):
        record = read_record(path)
        if record["status"] == "complete" and (not scales or record["scale"] in scales):
            chosen.append(path)
            if not (MEMBER.fullmatch(f"runs/{path.name}/record.json") and path.name.endswith(f"-{record['run_id']}")):
                raise ConfigError(
                    f"{path}: it holds run {record['run_id']}, but its name is not one that `records import` takes; "
                    "move it away"
                )
    if not chosen:
        raise ConfigError(f"{results / 'runs'}: there is no complete run{' of scale ' if scales else ''}{_or(scales)}")
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in chosen:
            for name in FILES:
                content = read_bytes(path / name)
                member = tarfile.TarInfo(f"runs/{path.name}/{name}")  # without owner and time
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed.getvalue())
    return len(chosen), hashlib.sha256(packed.getvalue()).hexdigest()


def unpack(source: str, results: Path, sha256: str | None = None, most: int = MOST) -> tuple[int, int]:
    """Import the runs of an archive to ``results``: all of them, or none.

    Args:
        source: path or URL (``https://``, ``http://``) of the archive.
        results: folder that holds ``runs/``; may not exist yet.
        sha256: expected digest; ``None``: any.
        most: bytes that the archive may have, and what is in it.

    Returns:
        The number of imported runs, and of runs that existed already.

    Raises:
        ConfigError: the archive cannot be read, has another digest, or contains anything but records.
        RunError: a record is damaged or incomplete, or a different run of the same name exists.
        OSError: the folder cannot be written.
    """
    content = _fetched(source, most)
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and sha256.lower() != found:
        raise ConfigError(f"{source}: its SHA-256 is {found}, not {sha256}; it is a different archive, or damaged")
    (results / "runs").mkdir(parents=True, exist_ok=True)
    with _staging(results) as staged:
        _extract(content, source, staged, most)
        new = [path for path in sorted(staged.iterdir()) if not _is_there(path, results / "runs" / path.name, source)]
        for path in new:
            os.replace(path, results / "runs" / path.name)
        return len(new), len(list(staged.iterdir()))


def _fetched(source: str, most: int) -> bytes:
    """Read the bytes of an archive."""
    try:
        if re.match("https?://", source):
            with urlopen(source, timeout=TIMEOUT) as answer:
                content = bytes(answer.read(most + 1))
        else:
            with open(source, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError, HTTPException) as error:  # from the server or the disk
        reason = error.reason if isinstance(error, URLError) else getattr(error, "strerror", None) or error
        raise ConfigError(f"{source}: cannot be read: {reason}; give the path or URL of an archive") from None
    if len(content) > most:
        raise ConfigError(f"{source}: it has more than {most:,} bytes; archives of records are smaller")
    return content


@contextmanager
def _staging(results: Path) -> Iterator[Path]:
    """Create a temporary folder on the same disk."""
    path = Path(tempfile.mkdtemp(prefix=".import-", dir=results))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _extract(content: bytes, source: str, folder: Path, most: int) -> None:
    """Write the files of an archive into one folder per run; refuse files that do not belong to records."""
    total = 0
    try:
        with (
            gzip.GzipFile(fileobj=io.BytesIO(content)) as unzipped,
            tarfile.open(fileobj=unzipped, mode="r:") as tar,
        ):
            for member in tar:
                named, total = MEMBER.fullmatch(member.name), total + member.size
                if named is None or not member.isreg() or total > most:
                    what = "it is too large" if total > most else "archives hold runs/<run>/record.json and the like"
                    raise ConfigError(f"{source}: {member.name!r} is refused: {what}; nothing was imported")
                file = folder / named["run"] / named["file"]
                if file.exists():
                    raise ConfigError(f"{source}: {member.name!r} occurs twice; nothing was imported")
                file.parent.mkdir(exist_ok=True)
                read = tar.extractfile(member)
                file.write_bytes(read.read() if read else b"")
            while rest := unzipped.read(BLOCK):  # to the end, where the checksum is
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("a header in the middle cannot be read")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{source}: not an archive of records, or damaged ({error}); download it again") from None


def _is_there(path: Path, target: Path, source: str) -> bool:
    """Whether a run of an archive exists already.

    Raises:
        RunError: the run in the archive is not complete, or a different run exists in its place.
    """
    if lacking := [name for name in FILES if not (path / name).exists()]:
        raise RunError(f"{source}: run {path.name} has no {lacking[0]}; nothing was imported")
    state, record = look(path)
    if record is None:
        told = "damaged: its record is not what the run wrote" if state == "damaged" else "not complete"
        raise RunError(f"{source}: run {path.name} is {told}; nothing was imported")
    if not path.name.endswith(f"-{record['run_id']}"):
        raise RunError(f"{source}: run {path.name} has the record of run {record['run_id']}; nothing was imported")
    if not target.exists():
        return False
    state, own = look(target)
    if own is None:
        raise RunError(f"{target} holds a run that is {state}; finish or delete it, or give another --results_dir")
    if digest(own, read_rows(target)) != digest(record, read_rows(path)):  # old records hold no digest
        raise RunError(
            f"{target} differs from the run of that name in {source}; nothing was imported. `verify` compares the two "
            "once the archive is imported with another --results_dir"
        )
    return True


def _or(words: Collection[str]) -> str:
    return " or ".join(sorted(words))
