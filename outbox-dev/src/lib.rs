//! A Postgres for examples and tests: by URL, by Docker, or from local binaries.
