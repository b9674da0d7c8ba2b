"""Run by Alembic: applies the migrations on the connection that `SqlDatabase` hands over."""

from alembic import context

from service.stores.sql_schema import METADATA

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
