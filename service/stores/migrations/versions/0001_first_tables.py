"""The first tables: entries, sessions, the commit number."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "entries",
        sa.Column("key", sa.String(512), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("session", sa.BigInteger, nullable=True),
    )
    op.create_index("ix_entries_session", "entries", ["session"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sqlite_autoincrement=True,
    )
    commits = op.create_table(
        "commits",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(commits, [{"id": 1, "number": 0}])


def downgrade() -> None:
    for table in ("commits", "sessions", "entries"):
        op.drop_table(table)
