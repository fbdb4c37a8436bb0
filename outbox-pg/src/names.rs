//! Where the outbox lives: its schema, table and channel.

use outbox_core::ConfigError;

/// The names of the schema, the table and the channel. Everything else derives from the table's name.
///
/// Defaults: schema `outbox`, table `outbox`, channel `outbox_new`; with other names the channel is
/// `<schema>.<table>_new`, so that outboxes in one database do not wake each other's relays. Of a longer name the last 63
/// bytes: outboxes that have those in common take a channel each by [`with_channel`](Self::with_channel).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    schema: String,
    table: String,
    channel: String,
}

/// Postgres cuts longer names off.
const NAME_BYTES_MAX: usize = 63;
/// The longest suffix of a derived name is `_require_read_committed`.
const TABLE_BYTES_MAX: usize = 40;

impl Names {
    /// Checks and takes the names of schema and table.
    ///
    /// # Errors
    /// [`ConfigError`] unless each is a letter or `_`, then letters, digits and `_`, of at most 63 bytes for the schema
    /// and 40 for the table.
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Result<Self, ConfigError> {
        let (schema, table) = (schema.into(), table.into());
        check("schema", &schema, NAME_BYTES_MAX)?;
        check("table", &table, TABLE_BYTES_MAX)?;
        let channel = match (schema.as_str(), table.as_str()) {
            ("outbox", "outbox") => "outbox_new".to_owned(),
            _ => format!("{schema}.{table}_new")
                .chars()
                .rev()
                .take(NAME_BYTES_MAX)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect(),
        };
        Ok(Self {
            schema,
            table,
            channel,
        })
    }

    /// Sets the channel on which sleeping relays are woken.
    ///
    /// # Errors
    /// [`ConfigError`] as for the schema.
    pub fn with_channel(mut self, channel: impl Into<String>) -> Result<Self, ConfigError> {
        self.channel = channel.into();
        check("channel", &self.channel, NAME_BYTES_MAX)?;
        Ok(self)
    }

    /// The schema's name.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The channel's name.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// Puts these names into SQL that was written for the defaults.
    ///
    /// The rule: `"outbox".` and `SCHEMA "outbox"` are the schema, every other quoted name that begins with `"outbox`
    /// derives from the table, and `'outbox_new'` is the channel. The names are checked, so they cannot break out of their
    /// quotes.
    #[must_use]
    pub fn render(&self, sql: &str) -> String {
        let (schema, table) = (&self.schema, &self.table);
        let derived = |piece: &str| piece.replace("\"outbox", &format!("\"{table}"));
        let of_schema = |piece: &str| {
            let pieces: Vec<String> = piece.split("SCHEMA \"outbox\"").map(derived).collect();
            pieces.join(&format!("SCHEMA \"{schema}\""))
        };
        let pieces: Vec<String> = sql.split("\"outbox\".").map(of_schema).collect();
        pieces
            .join(&format!("\"{schema}\"."))
            .replace("'outbox_new'", &format!("'{}'", self.channel))
    }
}

impl Default for Names {
    fn default() -> Self {
        Self {
            schema: "outbox".to_owned(),
            table: "outbox".to_owned(),
            channel: "outbox_new".to_owned(),
        }
    }
}

fn check(what: &str, name: &str, limit: usize) -> Result<(), ConfigError> {
    let mut bytes = name.bytes();
    let fits = name.len() <= limit
        && bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if fits {
        return Ok(());
    }
    Err(ConfigError::new(
        what,
        format!("{name:?}"),
        format!("it takes 1 to {limit} letters, digits and underscores, and no digit first"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_misread_are_refused() {
        for bad in ["", "1a", "a-b", "a\"b", "a;b", "ä", &"a".repeat(64)] {
            assert!(Names::new(bad, "outbox").is_err(), "{bad:?} passed as a schema");
            assert!(Names::new("outbox", bad).is_err(), "{bad:?} passed as a table");
            assert!(
                Names::default().with_channel(bad).is_err(),
                "{bad:?} passed as a channel"
            );
        }
        let message = Names::new("a b", "outbox").unwrap_err().to_string();
        assert_eq!(
            message,
            "schema is \"a b\"; it takes 1 to 63 letters, digits and underscores, and no digit first"
        );
    }

    #[test]
    fn names_that_read_alike_together_have_channels_of_their_own() {
        let channel = |schema, table| Names::new(schema, table).unwrap().channel().to_owned();
        assert_eq!(channel("a_b", "c"), "a_b.c_new");
        assert_ne!(channel("a_b", "c"), channel("a", "b_c"));
        assert_ne!(channel("outbox_outbox", "x"), channel("outbox", "outbox_x"));
    }

    #[test]
    fn sql_takes_on_the_names() {
        let sql = r#"SELECT FROM "outbox"."outbox", "outbox"."outbox_lease"; CREATE INDEX "outbox_fresh"; LISTEN 'outbox_new'; GRANT USAGE ON SCHEMA "outbox" TO a"#;

        let names = Names::new("Shop", "events").unwrap();

        assert_eq!(
            names.render(sql),
            r#"SELECT FROM "Shop"."events", "Shop"."events_lease"; CREATE INDEX "events_fresh"; LISTEN 'Shop.events_new'; GRANT USAGE ON SCHEMA "Shop" TO a"#
        );
        assert_eq!(Names::default().render(sql), sql);
    }
}
