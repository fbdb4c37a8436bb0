//! The failure modes of docs/runbook.md: each provoked, found and mended with the real command, in the steps told there.

mod drained;
mod failed;
mod lag;
mod pending;
#[path = "../support/mod.rs"]
mod support;

use outbox::Registry;
use support::{Said, World, ship};

const RUNBOOK: &str = include_str!("../../../docs/runbook.md");
const PLAYED: &str = concat!(
    include_str!("pending.rs"),
    include_str!("drained.rs"),
    include_str!("failed.rs"),
    include_str!("lag.rs"),
);

/// What the runbook tells to type, without the words after it.
fn lines_to_type() -> impl Iterator<Item = &'static str> {
    let plain = |line: &'static str| line.split(" #").next().unwrap_or(line).trim();
    RUNBOOK
        .lines()
        .map(plain)
        .filter(|line| line.starts_with("outbox "))
}

/// Types a line of the runbook as somebody on call would, with what stands for its examples. Confirmed where that is asked.
async fn told(world: &World, part: Option<&str>, line: &str, filled: &[(&str, &str)]) -> Said {
    assert!(
        lines_to_type().any(|told| told == line),
        "the runbook does not tell: {line}"
    );
    let line = filled.iter().fold(line.to_owned(), |line, (example, value)| {
        line.replace(example, value)
    });
    let quoted = line.split('"').enumerate();
    let mut words: Vec<&str> = quoted
        .flat_map(|(n, text)| match n % 2 {
            0 => text.split_whitespace().collect(),
            _ => vec![text],
        })
        .skip(1)
        .collect();
    if ["redrive", "reopen"].contains(&words[0]) && !words.contains(&"--dry-run") {
        words.push("--yes");
    }
    world.outbox_as(part, &words).await
}

/// What `outbox doctor` says to a check: evidence and remedy.
fn found(doctor: &Said, finding: &str) -> String {
    let (verdict, name) = finding.split_once(' ').unwrap_or_default();
    let mut lines = doctor.out.lines();
    let fits = |line: &&str| {
        let said = line.strip_prefix(verdict).map(str::trim_start);
        said.is_some_and(|said| said.starts_with(name))
    };
    let line = lines
        .find(fits)
        .unwrap_or_else(|| panic!("no {finding} in {}{}", doctor.out, doctor.err));
    assert_eq!(
        doctor.code,
        i32::from(doctor.out.contains("\nWRONG ") || doctor.out.starts_with("WRONG "))
    );
    format!("{line} {}", lines.next().unwrap_or_default())
}

#[test]
fn every_command_and_every_finding_of_the_runbook_is_played_through() {
    let lines: Vec<&str> = lines_to_type().collect();
    let findings: Vec<&str> = RUNBOOK
        .split('`')
        .filter(|quoted| quoted.starts_with("WRONG ") || quoted.starts_with("look "))
        .collect();

    assert!(lines.len() > 9 && findings.len() > 7, "{lines:?} {findings:?}");
    for told in lines.iter().chain(&findings) {
        let played = format!("\"{}\"", told.replace('"', "\\\""));
        assert!(PLAYED.contains(&played), "nothing plays {played}");
    }
}

fn shipping() -> Registry {
    Registry::new().on("shipping", ship)
}
