//! From a failed instance to a new one.

use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, Sender};
use crate::dispatcher::careful::Suspect;
use crate::dispatcher::instance::Instance;

/// The longest rest between instances that come to nothing.
const REST_MAX: Duration = Duration::from_secs(1);

impl Sender {
    /// Goes on with whatever ends the use of an instance.
    pub(super) fn recover(&mut self, now: Instant) {
        match self.phase {
            Phase::Open => {}
            Phase::Draining if self.pipeline.in_flight() == 0 => self.restart(now),
            Phase::Draining => {}
            Phase::Resting { until } if now >= until => self.open(now),
            Phase::Resting { .. } => {}
            Phase::Collecting { until, .. } if self.pipeline.in_flight() == 0 || now >= until => {
                self.restart(now)
            }
            Phase::Collecting { until, purged } => {
                let Some(instance) = &self.instance else { return };
                let mut now_purged = purged;
                if instance.fatal().is_some() {
                    // Nothing more is sent after a fatal error, but a record whose request was refused goes back to
                    // the queue, where it would wait for ever. What is in flight still gets its verdict.
                    instance.purge_queue();
                } else if !purged {
                    instance.purge_all();
                    now_purged = true;
                }
                self.phase = Phase::Collecting {
                    until,
                    purged: now_purged,
                };
            }
        }
    }

    /// The next generation: suspects go alone, the others start again.
    fn restart(&mut self, now: Instant) {
        if let Some(instance) = self.instance.take() {
            instance.discard();
        }
        for (job, next, last) in self.pipeline.restart() {
            self.careful.push(Suspect { job, next, last });
        }
        self.vain_instances += 1;
        // The first failure may be one record's; several in a row are the cluster's.
        let rest = match self.vain_instances {
            0..=2 => Duration::ZERO,
            vain => REST_MAX.min(Duration::from_millis(50) * 2_u32.saturating_pow(vain.min(10) - 3)),
        };
        // It connects while it rests.
        self.instance = self.spare.take().or_else(|| self.build());
        self.phase = Phase::Resting { until: now + rest };
        self.recover(now);
    }

    /// Puts an instance in service.
    pub(super) fn open(&mut self, now: Instant) {
        self.instance = self.instance.take().or_else(|| self.build());
        self.phase = match self.instance {
            Some(_) => Phase::Open,
            None => Phase::Resting {
                until: now + REST_MAX,
            },
        };
    }

    fn build(&self) -> Option<Instance> {
        let config = self.config.pipelined(self.batch_bytes_max);
        built(Instance::new(
            &self.config.settings,
            &config,
            "pipeline",
            self.reports.clone(),
        ))
    }

    pub(super) fn build_careful(&self) -> Option<Instance> {
        let config = self.config.careful();
        built(Instance::new(
            &self.config.settings,
            &config,
            "careful",
            self.careful_reports.clone(),
        ))
    }

    /// The broker has acknowledged something in this generation.
    pub(super) fn is_alive(&mut self) {
        self.vain_instances = 0;
        if self.spare.is_none() {
            // It takes a new instance half a second to be told its producer id; a spare has been told.
            self.spare = self.build();
        }
        if std::mem::take(&mut self.in_outage) {
            tracing::info!("kafka acknowledges again");
        }
    }

    /// Kafka did not acknowledge in time. Said once, until it does again.
    pub(super) fn is_down(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.in_outage, true) {
            let waiting = self.hands.len();
            let oldest = self.hands.values().map(|hand| hand.request.deadline).min();
            let late_ms = oldest.map_or(0, |deadline| now.saturating_duration_since(deadline).as_millis());
            tracing::warn!(waiting, late_ms, "{}; events stay pending", self.outage_reason());
        }
    }
}

fn built(instance: Result<Instance, outbox_core::ConfigError>) -> Option<Instance> {
    match instance {
        Ok(instance) => Some(instance),
        Err(error) => {
            tracing::error!(%error, "a kafka producer cannot be made");
            None
        }
    }
}
