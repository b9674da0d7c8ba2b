"""The tables of the SQL metadata store, as the newest migration leaves them.

`tests/service/stores/test_sql.py` holds the migrations to these tables. A change here needs a new file in
`migrations/versions` and its revision at the end of `REVISIONS`.
"""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table

REVISIONS = ("0001",)
"""Every revision that this version knows, oldest first. A store with any other one was written by a newer version."""

METADATA = MetaData()

ENTRIES = Table(
    "entries",
    METADATA,
    Column("key", String(512), primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("session", BigInteger, nullable=True, index=True),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    sqlite_autoincrement=True,  # an id is never used again, not even that of a deleted row
)

COMMITS = Table(
    "commits",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row: the number of the newest commit."""
