//! Tables for people, JSON for programs.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::CliError;

/// A table without lines: pipes well, reads well.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CliError> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Prints a line. Whoever closes the pipe has read enough.
pub(crate) fn line(text: &str) -> Result<(), CliError> {
    is_read(text).map(drop)
}

/// Prints a line, and says whether somebody may read a further one.
pub(crate) fn is_read(text: &str) -> Result<bool, CliError> {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// One line of a foreign text: no control characters that could move a terminal's cursor, and not too long.
pub(crate) fn short(text: &str, chars: usize) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(chars + 1)
        .collect();
    if plain.chars().count() > chars {
        let kept: String = plain.chars().take(chars.saturating_sub(1)).collect();
        return format!("{kept}…");
    }
    plain
}

/// A time as people say it: the two largest units.
pub(crate) fn time(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let (s, ms) = (whole.as_secs(), whole.subsec_millis());
    match s {
        0 => format!("{ms} ms"),
        1..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Asks on a terminal; without one, says that `--yes` is needed.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    let refused = |why: &str| Err(CliError::NotConfirmed(format!("{why}; nothing was changed")));
    if !std::io::stdin().is_terminal() {
        return refused("not on a terminal, and without --yes");
    }
    write!(std::io::stderr(), "{question} [y/N] ")?;
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => refused("not confirmed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_texts_cannot_write_over_the_terminal() {
        assert_eq!(short("a\u{1b}[2Jb\nc", 20), "a [2Jb c");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("abcd", 4), "abcd");
    }

    #[test]
    fn times_have_two_units() {
        assert_eq!(time(0.25), "250 ms");
        assert_eq!(time(90.0), "1 min 30 s");
        assert_eq!(time(f64::NAN), "0 ms");
        assert_eq!(time(90_000.0), "1 d 1 h");
    }
}
