//! A long run: relays and publishers as processes, a server of their own, faults at random, and a verdict at the end.

mod cast;
mod faults;
mod operator;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox::BoxError;
use sqlx::{Connection, PgConnection};

use crate::history::Verdict;
use crate::reckoning::{judge, until_drained};
use cast::Cast;
pub(crate) use faults::Fault;
use faults::strike;
pub use operator::redrive;

/// How long, and from which seed.
#[derive(Debug, Clone, Copy)]
pub struct RunConfig {
    /// Every choice of faults and scripts follows from it; what the processes make of them does not.
    pub seed: u64,
    /// How long faults go on.
    pub length: Duration,
}

/// After the last fault, everything has to be settled within this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What the checker found.
    pub verdict: Verdict,
    /// Numbers and findings, to read.
    pub report: String,
    /// Where the history is.
    pub folder: PathBuf,
}

/// Runs, and judges.
///
/// # Errors
/// There is no server, a child ends by itself, or something is still pending long after the faults.
pub async fn run(config: RunConfig) -> Result<Outcome, BoxError> {
    let mut random = fastrand::Rng::with_seed(config.seed);
    let mut cast = Cast::start(&mut random).await?;
    let mut struck: BTreeMap<Fault, u32> = BTreeMap::new();
    let began = Instant::now();
    while began.elapsed() < config.length {
        tokio::time::sleep(Duration::from_millis(random.u64(500..2_500))).await;
        let fault = Fault::any(&mut random);
        strike(&mut cast, fault, &mut random).await?;
        *struck.entry(fault).or_default() += 1;
        cast.check_that_all_live()?;
    }

    cast.stop_publishing().await?;
    let calm = Instant::now();
    let mut connection = PgConnection::connect(cast.database.url()).await?;
    loop {
        until_drained(&mut connection, PATIENCE).await?;
        // What was rejected has to succeed once it is redriven.
        if operator::redrive(&mut connection, &cast.history).await? == 0 {
            break;
        }
    }
    let drained = calm.elapsed();
    cast.stop_relaying().await?;
    let verdict = judge(&mut connection, cast.folder.path()).await?;
    let report = report(config, &struck, drained, &verdict)?;
    let folder = cast.folder.keep();
    Ok(Outcome {
        verdict,
        report,
        folder,
    })
}

fn report(
    config: RunConfig,
    struck: &BTreeMap<Fault, u32>,
    drained: Duration,
    verdict: &Verdict,
) -> Result<String, std::fmt::Error> {
    let mut text = format!(
        "seed {}, {} s of faults\n\n",
        config.seed,
        config.length.as_secs()
    );
    for (fault, times) in struck {
        writeln!(text, "{times:>6}  {fault}")?;
    }
    let summary = &verdict.summary;
    let numbers = [
        (summary.committed, "events committed"),
        (summary.rolled_back, "events rolled back"),
        (summary.unknown, "events whose commit was not answered"),
        (summary.deliveries, "deliveries"),
        (summary.failed, "deliveries failed by their script"),
        (
            summary.again_after_done,
            "deliveries again, after a handler that had finished unrecorded",
        ),
        (
            summary.again_after_cut,
            "deliveries again, after a handler that was cut off",
        ),
        (verdict.violations.len(), "VIOLATIONS"),
    ];
    writeln!(text)?;
    for (number, what) in numbers {
        writeln!(text, "{number:>6}  {what}")?;
    }
    writeln!(
        text,
        "\n{:.1} s from the last fault until nothing was pending",
        drained.as_secs_f64()
    )?;
    for violation in &verdict.violations {
        writeln!(text, "{violation}")?;
    }
    Ok(text)
}
