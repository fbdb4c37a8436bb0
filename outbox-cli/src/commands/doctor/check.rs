//! What a check found.

use serde::Serialize;

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but somebody should have a look.
    Look,
    /// Needs an operator.
    Wrong,
    /// Could not be checked.
    Skipped,
}

/// One check, with what speaks for its verdict and what to do.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) evidence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, evidence, None)
    }

    pub(super) fn skipped(name: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(name, Verdict::Skipped, evidence, None)
    }

    /// Could not be checked, until somebody does this.
    pub(super) fn hidden(name: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Verdict::Skipped, evidence, Some(remedy.into()))
    }

    pub(super) fn look(name: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Verdict::Look, evidence, Some(remedy.into()))
    }

    pub(super) fn wrong(name: &'static str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Verdict::Wrong, evidence, Some(remedy.into()))
    }

    fn new(
        name: &'static str,
        verdict: Verdict,
        evidence: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        let evidence = evidence.into();
        Self {
            name,
            verdict,
            evidence,
            remedy,
        }
    }

    pub(super) fn text(&self, color: bool) -> String {
        let (word, code) = match self.verdict {
            Verdict::Ok => ("ok     ", "32"),
            Verdict::Look => ("look   ", "33"),
            Verdict::Wrong => ("WRONG  ", "31"),
            Verdict::Skipped => ("skipped", "2"),
        };
        let word = if color {
            format!("\u{1b}[{code}m{word}\u{1b}[0m")
        } else {
            word.to_owned()
        };
        let remedy = self
            .remedy
            .as_ref()
            .map(|remedy| format!("\n{:24}→ {remedy}", ""));
        format!(
            "{word} {:15} {}{}",
            self.name,
            self.evidence,
            remedy.unwrap_or_default()
        )
    }
}
