//! One record at a time: for those whose batch the broker refused.
//!
//! Alone, a record is refused for its own sake or not at all. The events before it in its run go the same way, since
//! they may only have been taken back, not refused, when it was.

use std::collections::VecDeque;

use super::job::JobId;
use super::pipeline::Ticket;

/// A job on the careful lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) job: JobId,
    /// The record whose turn it is.
    pub(super) next: usize,
    /// The last record that goes this way.
    pub(super) last: usize,
}

/// What an acknowledgement on the careful lane means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The report is of a record that nobody waits for.
    Stale,
    /// The next record of the lane may be sent.
    Next,
    /// The job's suspects are through; so many of its records are acknowledged. The rest goes the usual way.
    Through(JobId, usize),
}

/// Who goes alone, in which order. Pure.
#[derive(Debug, Default)]
pub(super) struct CarefulLane {
    generation: u64,
    queue: VecDeque<Suspect>,
    in_flight: Option<Ticket>,
}

impl CarefulLane {
    pub(super) fn push(&mut self, suspect: Suspect) {
        self.queue.push_back(suspect);
    }

    /// The record to be sent now, if none is under way.
    pub(super) fn offer(&mut self) -> Option<Ticket> {
        let suspect = self.queue.front().filter(|_| self.in_flight.is_none())?;
        let ticket = Ticket {
            generation: self.generation,
            job: suspect.job,
            index: suspect.next,
            lane: 0,
        };
        self.in_flight = Some(ticket);
        Some(ticket)
    }

    /// A record was written.
    pub(super) fn acknowledged(&mut self, ticket: Ticket) -> Step {
        if self.in_flight != Some(ticket) {
            return Step::Stale;
        }
        self.in_flight = None;
        let Some(suspect) = self.queue.front_mut() else {
            return Step::Stale;
        };
        suspect.next += 1;
        let Suspect { job, next, last } = *suspect;
        if next <= last {
            return Step::Next;
        }
        self.queue.pop_front();
        Step::Through(job, next)
    }

    /// The record under way was not written: its job leaves the lane. `None`: nobody waits for it.
    pub(super) fn failed(&mut self, ticket: Ticket) -> Option<Suspect> {
        if self.in_flight != Some(ticket) {
            return None;
        }
        self.in_flight = None;
        self.queue.pop_front()
    }

    /// Takes a job off the lane: how many of its records are acknowledged, and whether one is under way, so that
    /// the instance has to be given up.
    pub(super) fn remove(&mut self, job: JobId) -> Option<(usize, bool)> {
        let at = self.queue.iter().position(|suspect| suspect.job == job)?;
        let suspect = self.queue.remove(at)?;
        let under_way = self.in_flight.is_some_and(|ticket| ticket.job == job);
        if under_way {
            self.in_flight = None;
            self.generation += 1;
        }
        Some((suspect.next, under_way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(suspects: &[(JobId, usize, usize)]) -> CarefulLane {
        let mut lane = CarefulLane::default();
        suspects.iter().for_each(|(job, next, last)| {
            lane.push(Suspect {
                job: *job,
                next: *next,
                last: *last,
            });
        });
        lane
    }

    #[test]
    fn one_record_is_under_way_at_a_time_up_to_the_suspect() {
        let mut lane = lane(&[(1, 2, 3), (2, 0, 0)]);

        let first = lane.offer().unwrap();
        assert_eq!((first.job, first.index, lane.offer()), (1, 2, None));
        assert_eq!(lane.acknowledged(first), Step::Next);
        let second = lane.offer().unwrap();
        assert_eq!(lane.acknowledged(second), Step::Through(1, 4));
        assert_eq!(lane.offer().unwrap().job, 2);
    }

    #[test]
    fn a_job_that_is_taken_off_makes_reports_about_it_stale() {
        let mut lane = lane(&[(1, 0, 1), (2, 0, 0)]);
        let first = lane.offer().unwrap();

        assert_eq!(lane.remove(2), Some((0, false)));
        assert_eq!(lane.remove(1), Some((0, true)));
        assert_eq!(lane.remove(1), None);

        assert_eq!(lane.acknowledged(first), Step::Stale);
        assert_eq!(lane.failed(first), None);
        assert_eq!(lane.offer(), None);
    }
}
