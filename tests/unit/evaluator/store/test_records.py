"""Parts are whole or absent, whatever happens while they are written, with the
contract's columns; spreadsheets."""

import contextlib
import csv
import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.core.files import csv_bytes, parquet_bytes, write_atomically
from evaluator.core.isolated import environment
from evaluator.core.lease import Lease, LeaseLost
from evaluator.store import schema
from evaluator.store.reading import damaged, read_part
from evaluator.store.records import BASE_FAILED, RecordStore, to_table
from evaluator.store.schema import RECORD_COLUMNS, RECORDS
from tests.support.stamps import make_item, stamped
from tests.support.sweeps import refused

KEY = "k1"
GREEDY = frozenset({("greedy", "open", 0)})


def _record(number=0, language="english", digest="d1", **more):
    item_id = f"{language}-{number:04d}"
    item = replace(make_item(language=language), task="gazetteer", item_id=item_id)
    given = {"checkpoint": "dense", "weights_digest": digest, "token_ids": (7, 0)}
    return stamped(item, "greedy", **{"text": "호수 ఒంటి"} | given | more)


@pytest.fixture
def records(tmp_path):
    return RecordStore(tmp_path)


def added(records, *made, key=KEY):
    return records.append(key, to_table(made or [_record()]))


def test_finished_items_of_all_parts(tmp_path, records):
    assert records.finished(KEY) == {}
    path = added(records, _record(0), _record(1))
    assert path.parent == tmp_path / "records" / KEY
    assert path.name == f"part-000000-{crc32(path.read_bytes()):08x}.parquet"
    row = pq.read_table(path, schema=RECORDS).to_pylist()[1]
    assert (row["item_id"], row["text"]) == ("english-0001", "호수 ఒంటి")
    assert row["token_ids"] == [7, 0]
    added(RecordStore(tmp_path), _record(0, "thai"))  # of a later call
    added(records, _record(9), key="k2")
    names = {("english", "english-0000"), ("english", "english-0001")}
    there = dict.fromkeys({*names, ("thai", "thai-0000")}, GREEDY)
    assert records.finished(KEY) == there
    found = [path.relative_to(records.root) for path in records.every_part()]
    assert [f"{path.parent}/{path.stem[:11]}" for path in found] == [
        "k1/part-000000",
        "k1/part-000001",
        "k2/part-000000",
    ]


@pytest.mark.parametrize(
    "failed", [{"status": "engine_error"}, {"status": "excluded", "text": BASE_FAILED}]
)
def test_failed_item_is_not_finished(records, failed):
    """Until a later part has its answer; a model may say what a reason says."""
    both = "english-0000", "english-0001"
    added(records, _record(0, **failed), _record(1, text=BASE_FAILED))
    done = records.finished(KEY)
    assert [done["english", each] for each in both] == [frozenset(), GREEDY]
    added(records, _record(0))
    assert records.finished(KEY)["english", both[0]] == GREEDY


def test_unreadable_part_may_be_sound(records):
    part = added(records)
    part.unlink()
    part.symlink_to(part)
    told = refused(damaged, records)
    assert f"{part.name}: cannot be read: Too many levels of symb" in told
    assert part.is_symlink()


def test_start_reads_each_part_once(tmp_path, records, monkeypatch):
    """The check for damage keeps what the search for finished items needs."""
    added(records, _record(0))
    added(records, _record(1))
    opened = []

    def counted(path, *args, _real=pq.ParquetFile, **more):
        opened.append(path.stem[:11])
        return _real(path, *args, **more)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    start = RecordStore(tmp_path)
    assert damaged(start) == {}
    for _ in range(2):
        assert len(start.finished(KEY)) == 2
    assert sorted(opened) == ["part-000000", "part-000001"]
    added(start, _record(2), _record(3))
    assert len(start.finished(KEY)) == 4


def test_lacking_records_are_taken(tmp_path, records):
    """Of the items and seeds that are due, each once, and no failure."""
    other = RecordStore(tmp_path / "other")
    failed = _record(2, status="engine_error")
    added(other, *(_record(n) for n in (0, 1)), failed, _record(3))
    added(other, _record(0, seed=1), _record(1, seed=1))
    added(records, _record(0))
    both = GREEDY | {("greedy", "open", 1)}
    due = {("english", f"english-{n:04d}"): both for n in range(3)}
    assert (records.take(other, KEY, due), records.take(other, KEY, due)) == (2, 0)
    done = records.finished(KEY)
    assert done == dict.fromkeys([*due][:2], both)
    assert sum(pq.read_metadata(path).num_rows for path in records.parts(KEY)) == 4


def _flip(content):
    """One bit in the middle: of a text, which compression alone does not notice."""
    at = content.index("호수".encode())
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _written(left_out, **columns):
    table = to_table([_record(0)])
    for name, values in columns.items():
        table = table.set_column(table.schema.names.index(name), name, pa.array(values))
    return parquet_bytes(table if left_out is None else table.remove_column(left_out))


@pytest.mark.parametrize(
    ("why", "damage"),
    [
        ("file size is 0 bytes", lambda _: b""),
        ("magic bytes", lambda content: content[:-9]),
        ("size is 4|magic bytes|corrupt", lambda _: b"PAR1"),
        ("(?i)crc", _flip),
        ("codec can't decode", lambda content: content.replace(b"token_ids", b"token_i\xe4s")),
        ("has no column 'item_id'", lambda _: _written(RECORDS.names.index("item_id"))),
        ("column 'index' has type string, not int32", lambda _: _written(None, index=["0"])),
        ("its bytes have another checksum", lambda _: _written(None, index=[1])),
    ],
)  # fmt: skip
def test_damaged_part_is_set_aside(tmp_path, records, why, damage):
    """Whatever its damage; nothing is deleted, and what is whole stays."""
    whole = added(records, _record(1))
    for number in (1, 2):
        part = added(records)
        part.write_bytes(damage(part.read_bytes()))
        content = part.read_bytes()
        ((found, reason),) = damaged(records).items()
        assert found == part
        assert re.search(why, reason)
        assert "\n" not in reason
        target = records.set_aside(part)
        assert target == tmp_path / "damaged" / KEY / part.name
        assert part.name.startswith(f"part-00000{number}-")
        assert target.read_bytes() == content
        assert damaged(records) == {}
        assert records.parts(KEY) == [whole]
        assert set(records.finished(KEY)) == {("english", "english-0001")}


def test_no_changed_part_is_taken(tmp_path, records):
    """It can be read, but its bytes are not those that its run wrote."""
    other = RecordStore(tmp_path / "other")
    part = added(other)
    part.write_bytes(_written(None, index=[1]))
    due = {("english", "english-0000"): GREEDY}
    told = refused(records.take, other, KEY, due)
    assert f"{part}: not a readable part (its bytes have another checksum" in told
    assert records.finished(KEY) == {}


def test_a_footer_counts_all_rows(records):
    """Arrow reads fewer where one bit of the count is another."""
    part = added(records, *map(_record, range(3)))
    whole, told = part.read_bytes(), []
    count = re.compile(re.escape(b"\x16\x06"))  # three, as Thrift writes a number
    for found in count.finditer(
        whole, len(whole) - int.from_bytes(whole[-8:-4], "little")
    ):
        part.write_bytes(whole[: found.start()] + b"\x16\x02" + whole[found.end() :])
        with contextlib.suppress(InputError):
            assert len(read_part(part, ["item_id"], RECORD_COLUMNS)) == 3
            continue
        told.append(refused(read_part, part, ["item_id"], RECORD_COLUMNS))
    assert f"{part}: its footer counts fewer rows than it has" in told


def test_lost_run_is_not_written(tmp_path, records):
    lock = Lease(tmp_path)
    part = added(records)
    shutil.rmtree(lock.folder)
    with pytest.raises(LeaseLost):
        records.set_aside(part)
    assert part.exists()
    lock.release()
    records.close()
    ended = r"part-000001-.*\.parquet: came after the run had ended"
    with pytest.raises(ResurfaceError, match=ended):
        added(records)
    assert [*records.every_part()] == [part]


def test_killed_writer_leaves_nothing(tmp_path, records):
    """SIGKILL between the temporary file and its rename, in a process of its own."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nimport pyarrow as pa\nfrom"
        " evaluator.store.records import RECORDS, RecordStore\nPath.replace = lambda"
        " *_: os.kill(os.getpid(),"
        " signal.SIGKILL)\nRecordStore(Path(sys.argv[1])).append('k1',"
        " RECORDS.empty_table())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], check=False, env=environment()
    )
    assert done.returncode == -signal.SIGKILL
    folder = tmp_path / "records" / KEY
    (left,) = folder.iterdir()
    assert left.name.startswith(".part-000000-")
    assert left.suffix == ".writing"
    assert records.finished(KEY) == {}
    assert list(records.every_part()) == []
    records.clean()
    assert list(folder.iterdir()) == []


def test_full_disk_leaves_nothing(tmp_path, records, monkeypatch):
    def full(descriptor):
        os.ftruncate(descriptor, 4)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    told = refused(added, records)
    assert re.search(r"part-000000-.*\.parquet: no space left on the device", told)
    assert list((tmp_path / "records" / KEY).iterdir()) == []


def test_file_is_old_or_new(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    told = refused(write_atomically, tmp_path / "run.json/a.json", b"{}")
    assert "cannot write there: " in told
    assert list(tmp_path.iterdir()) == [path]


def test_close_waits_for_writers(records, monkeypatch):
    """Two threads are in the middle of a part each: neither waits for the other, and
    `close` waits for both."""
    together, sync, order = threading.Barrier(3), os.fsync, []

    def slow(descriptor):
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix == ".writing":
            together.wait()
            time.sleep(0.05)
            order.append("written")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    writers = [threading.Thread(target=added, args=(records,)) for _ in "ab"]
    for writer in writers:
        writer.start()
    together.wait()
    records.close()
    order.append("closed")
    names = [path.stem[:11] for path in records.every_part()]
    assert names == ["part-000000", "part-000001"]
    assert order == ["written", "written", "closed"]
    for writer in writers:
        writer.join()


DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "records.md"


def test_document_of_records():
    assert DOCUMENT.read_text(encoding="utf-8") == schema.document(), (
        "run what its second paragraph says"
    )


def cells(frame):
    return list(csv.reader(io.StringIO(csv_bytes(frame).decode(), newline="")))


@pytest.mark.parametrize(
    "text",
    [*("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)"), *("\r=1", "＝1"), "-", "\t1"],
)  # fmt: skip
def test_formulas_are_marked_as_text(text):
    marked = f"'{text}".replace("\r", "\n")
    found = cells(pd.DataFrame({text: [text], "n": [1]}))
    assert found == [[marked, "n"], [marked, "1"]]
    found = cells(pd.DataFrame({"task": pd.Categorical([text, None])}))
    assert found[1:] == [[marked], [""]]


@pytest.mark.parametrize(
    "text",
    [
        *("-0.5", "+1", "-inf", "2:4", "a=b", "", "'=1", "-1e-3", "a\r=1+1"),
        *("a\r\n=1+1", "a\n=1+1", 'a",=1+1', "a,=1+1", 'a"\r=1'),
    ],
)
def test_other_text_stays_in_its_cell(text):
    frame = pd.DataFrame({"reason": [text], "n": [1]})
    assert cells(frame)[1:] == [[text.replace("\r\n", "\n").replace("\r", "\n"), "1"]]
    # which ends a row for some readers, quoted or not
    assert b"\r" not in csv_bytes(frame)


def test_numbers_stay_numbers():
    n = pd.array([-1, None, 3], dtype="Int64")
    frame = pd.DataFrame({"difference": [-0.25, 0.5, None], "n": n, "b": True})
    assert csv_bytes(frame) == frame.to_csv(index=False).encode()
