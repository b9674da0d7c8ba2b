"""What SQLite adds to the contract: what was answered survives, one process at a time, migrations, and refusals of
one clear line.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, exc, inspect, text

from log.disk import RealDisk
from service.ports import RealEnv
from service.stores import sql
from service.stores.port import Create, Put, Result, SessionExpired, StoreError, StoreFailed, StoreTooNew
from service.stores.sql import SqlDatabase, SqlStore, migrate
from service.stores.sql_schema import METADATA, REVISIONS
from tests.service.stores.watches import assert_watches_are_not_kept


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/meta.db"


def test_what_was_answered_is_there_after_a_crash_and_ephemeral_keys_are_not(tmp_path: Path) -> None:
    """A child process is killed without closing anything after its commits were answered."""
    program = (
        "import os, sys\n"
        "from service.stores.sql import SqlDatabase\n"
        "from service.stores.port import Create\n"
        "database = SqlDatabase(sys.argv[1])\n"
        "session = database.open_session()\n"
        "for number in range(50):\n"
        "    database.commit(session, (Create(f'kept/{number}', b'x'), Create(f'gone/{number}', b'x', True)))\n"
        "os._exit(9)\n"
    )
    child = subprocess.run([sys.executable, "-c", program, url_of(tmp_path)], check=False, timeout=60)
    assert child.returncode == 9
    database = SqlDatabase(url_of(tmp_path))
    snapshot = database.snapshot()
    assert sorted(snapshot.entries) == sorted(f"kept/{number}" for number in range(50))
    assert snapshot.number == 51  # fifty commits, and the one that ended the dead session
    assert database.open_session() == 2
    database.close()


def test_a_second_process_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    first = SqlDatabase(url_of(tmp_path))
    with pytest.raises(StoreError, match="is in use by another broker"):
        SqlDatabase(url_of(tmp_path))
    first.close()
    SqlDatabase(url_of(tmp_path)).close()


def test_a_store_of_a_newer_version_is_refused_unchanged(tmp_path: Path) -> None:
    SqlDatabase(url_of(tmp_path)).close()
    engine = create_engine(url_of(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    before = (tmp_path / "meta.db").read_bytes()
    with pytest.raises(StoreTooNew, match="was written by a newer oncelog") as refused:
        SqlDatabase(url_of(tmp_path))
    assert "\n" not in str(refused.value)
    assert (tmp_path / "meta.db").read_bytes() == before


def test_a_file_that_is_no_database_is_refused_unchanged(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="can't be read"):
        SqlDatabase(url_of(tmp_path))
    assert (tmp_path / "meta.db").read_bytes() == b"not a database" * 1000


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be opened"):
        SqlDatabase(url_of(tmp_path / "missing"))


def test_another_database_is_refused_with_what_to_do() -> None:
    with pytest.raises(StoreError, match="is not offered: leave it out"):
        SqlDatabase("postgresql://localhost/oncelog")


def test_the_migrations_lead_to_the_tables(tmp_path: Path) -> None:
    """What `alembic check` asks: from nothing, through every migration, to exactly the tables of `sql_schema`."""
    engine = create_engine(url_of(tmp_path))
    with engine.begin() as connection:
        migrate(connection, "head")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == REVISIONS[-1]
        assert connection.execute(text("SELECT number FROM commits")).scalar() == 0
    engine.dispose()
    database = SqlDatabase(url_of(tmp_path))
    session = database.open_session()
    assert database.commit(session, (Create("a", b"1"),)) == (Result.OK, 1)
    database.close()


def test_a_new_store_has_the_same_tables_as_a_migrated_one(tmp_path: Path) -> None:
    SqlDatabase(url_of(tmp_path)).close()
    migrated = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    with migrated.begin() as connection:
        migrate(connection, "head")
    new = create_engine(url_of(tmp_path))
    statement = text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")

    def tables(engine: object) -> dict[str, str]:
        with engine.connect() as connection:  # type: ignore[attr-defined]
            rows = {name: " ".join(sql.split()) for name, sql in connection.execute(statement)}
            rows.pop("alembic_version")
            return rows

    assert tables(new) == tables(migrated)
    assert inspect(new).get_table_names() == inspect(migrated).get_table_names()
    new.dispose()
    migrated.dispose()


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    folder = Path(sql.__file__).parent / "migrations"
    scripts = list(ScriptDirectory(str(folder)).walk_revisions())
    assert tuple(script.revision for script in reversed(scripts)) == REVISIONS


def test_an_ordinary_start_does_not_import_alembic(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from service.stores.sql import SqlDatabase\n"
        "SqlDatabase(sys.argv[1]).close()\n"
        "assert not any(name.startswith('alembic') for name in sys.modules)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, url_of(tmp_path)], check=True, timeout=60)


def test_a_commit_for_which_there_is_no_room_fails_and_changes_nothing(tmp_path: Path) -> None:
    """The file may not grow: SQLite says that the database is full."""
    database = SqlDatabase(url_of(tmp_path))
    session = database.open_session()
    assert database.commit(session, (Create("a", b"1"),))[0] is Result.OK
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFailed, match="full"):
        database.commit(session, (Put("a", b"2", 0), Create("b", bytes(1_000_000))))
    assert database.snapshot().entries == {"a": (b"1", 0)}
    assert database.commit(session, (Put("a", b"2", 0),))[0] is Result.OK
    database.close()


def test_an_answered_commit_is_on_the_platter(tmp_path: Path) -> None:
    """What a power cut leaves can't be shown here; what SQLite was told to promise can."""
    database = SqlDatabase(url_of(tmp_path))
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL: fsync with every commit
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    database.close()


def test_the_store_works_after_the_tasks_around_it_were_ended(tmp_path: Path) -> None:
    """A broker ends its tasks before it leaves the store."""

    async def main() -> None:
        env = RealEnv(RealDisk(str(tmp_path)))
        store = await SqlStore.open(url_of(tmp_path), env)
        session = await store.session(60)
        await env.tasks.cancel_all()
        assert (await session.commit(Create("a", b"1", ephemeral=True)))[0] is Result.OK
        await session.close()
        await store.close()

    asyncio.run(main())
    database = SqlDatabase(url_of(tmp_path))
    assert database.snapshot().entries == {}
    database.close()


def test_a_session_is_over_at_once_though_its_end_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the session nor the store waits for it. The next process ends what is left."""

    def broken(*_: object) -> None:
        raise exc.OperationalError("delete", {}, Exception("disk I/O error"))

    async def main() -> None:
        env = RealEnv(RealDisk(str(tmp_path)))
        store = await SqlStore.open(url_of(tmp_path), env)
        session = await store.session(60)
        assert (await session.commit(Create("a", b"1", ephemeral=True)))[0] is Result.OK
        monkeypatch.setattr(SqlDatabase, "end_session", broken)
        await session.close()
        assert session.lease_left() == 0.0
        assert (await session.commit(Create("b", b"1")))[0] is Result.EXPIRED
        with pytest.raises(SessionExpired):
            await session.read("")
        await store.close()

    asyncio.run(asyncio.wait_for(main(), 5))
    database = SqlDatabase(url_of(tmp_path))
    assert database.snapshot().entries == {}
    database.close()


def test_a_watch_that_is_over_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        env = RealEnv(RealDisk(str(tmp_path)))
        store = await SqlStore.open(f"sqlite:///{tmp_path}/meta.db", env)
        session = await store.session(6.0)
        await assert_watches_are_not_kept(session, session._watchers)
        await store.close()
        await env.tasks.cancel_all()

    asyncio.run(main())
