//! The outbox on Postgres: publisher, source, migrations.
