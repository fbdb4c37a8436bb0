//! What is logged at `info` and above has a name, and the table in docs/telemetry.md has it, too.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const DOCS: &str = include_str!("../../docs/telemetry.md");
const NAMES: &str = include_str!("../../outbox-core/src/telemetry.rs");

/// The crates whose lines the table lists.
const CRATES: [&str; 4] = ["outbox-core", "outbox-inproc", "outbox-pg", "outbox-telemetry"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// The lines that a source logs: a constant of `log_line` by its value, otherwise the text.
fn logged(source: &str) -> Vec<String> {
    let calls = ["info", "warn", "error"].map(|level| format!("tracing::{level}!("));
    let statements = calls.iter().flat_map(|call| source.split(call.as_str()).skip(1));
    statements
        .map(|rest| {
            let (constant, end) = (rest.find("log_line::"), rest.find("\")").unwrap_or(rest.len()));
            match constant.filter(|at| *at < end) {
                Some(at) => value(&rest[at + "log_line::".len()..]),
                None => rest[..end].rsplit('"').next().unwrap().to_owned(),
            }
        })
        .collect()
}

/// Of the constant whose name this begins with.
fn value(text: &str) -> String {
    let name: String = text
        .chars()
        .take_while(|c| c.is_uppercase() || *c == '_')
        .collect();
    let (_, value) = NAMES.split_once(&format!("pub const {name}: &str = \"")).unwrap();
    value.split('"').next().unwrap().to_owned()
}

#[test]
fn every_line_that_is_logged_is_documented_and_every_documented_one_is_logged() {
    let (_, table) = DOCS.split_once("## Log lines").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    let documented: BTreeSet<String> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect();

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let logged: BTreeSet<String> = CRATES
        .iter()
        .flat_map(|name| sources(&root.join(name).join("src")))
        .flat_map(|path| logged(&std::fs::read_to_string(path).unwrap()))
        .collect();

    assert_eq!(logged, documented);
}
