//! Records, and the files they are in.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Microseconds since 1970. One machine, one clock.
    pub at_us: i64,
    /// Which process wrote it.
    pub process: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// How a delivery ended, by its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It succeeded.
    Done,
    /// It returned an error.
    Failed,
    /// It was dropped before it returned.
    CutOff,
}

/// What becomes of the later events of a key when one has failed for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// They are delivered.
    #[default]
    GoOn,
    /// They wait until somebody resumes the key, or redrives or discards the event.
    Stop,
    /// They wait until the event is redriven and handled, or discarded.
    Park,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A publisher is about to publish an event, and commit.
    Intended {
        /// Which event.
        event: Uuid,
        /// Its payload, byte for byte.
        payload: String,
        /// Its ordering key, if it has one.
        key: Option<String>,
        /// The status that it must end with if it is committed.
        ends: String,
        /// What becomes of its key when it fails for good.
        #[serde(default)]
        policy: Policy,
        /// It is for later: until it is tried, it holds up nobody.
        #[serde(default)]
        delayed: bool,
    },
    /// Its transaction has committed.
    Committed {
        /// Which event.
        event: Uuid,
    },
    /// Its transaction, or the savepoint around it, was rolled back.
    RolledBack {
        /// Which event.
        event: Uuid,
    },
    /// The answer to its commit never came.
    Unknown {
        /// Which event.
        event: Uuid,
    },
    /// A handler begins.
    Started {
        /// Which event.
        event: Uuid,
        /// Which try, as the handler was told.
        attempt: u32,
        /// The payload that it was given.
        payload: String,
    },
    /// The handler is over.
    Ended {
        /// Which event.
        event: Uuid,
        /// How.
        how: Ending,
    },
    /// The store has confirmed an outcome.
    Settled {
        /// Which event.
        event: Uuid,
        /// `completed`, `retry`, `failed` or `released`.
        outcome: String,
    },
    /// From here on a process, or the server under all of them (`*`), is not as it should be.
    Faulted {
        /// Whom it hits.
        victim: String,
        /// What it is.
        fault: String,
    },
    /// That is over.
    Healed {
        /// Who is well again.
        victim: String,
    },
    /// An operator made a failed event pending again; it must end with `ends` now.
    Redriven {
        /// Which event.
        event: Uuid,
        /// The status that it must end with.
        ends: String,
    },
    /// An operator gives a failed event up.
    Discarded {
        /// Which event.
        event: Uuid,
    },
    /// An operator lets a stopped key go on.
    Resumed {
        /// Which key.
        key: String,
    },
    /// What the table says at the end.
    Row {
        /// Which event.
        event: Uuid,
        /// Its status.
        status: String,
        /// How many failed tries were charged to it.
        retry_count: i32,
        /// Its place in the order of its key.
        seq: i64,
        /// The error stored with it.
        error: Option<String>,
    },
}

/// A history could not be read.
#[derive(Debug)]
pub struct HistoryError(String);

impl std::fmt::Display for HistoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HistoryError {}

/// Appends records of one process to its file. Cheap to clone.
#[derive(Debug, Clone)]
pub struct History {
    process: Arc<str>,
    file: Arc<File>,
}

impl History {
    /// Opens the file of a process in the folder of the run.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(folder: &Path, process: &str) -> std::io::Result<Self> {
        let path = folder.join(format!("{process}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            process: Arc::from(process),
            file: Arc::new(file),
        })
    }

    /// Writes a record down.
    ///
    /// # Errors
    /// The file cannot be written: the run is worth nothing then, and should end.
    pub fn write(&self, what: What) -> std::io::Result<()> {
        let record = Record {
            at_us: now_us(),
            process: self.process.to_string(),
            what,
        };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        (&*self.file).write_all(&line)
    }
}

/// The clock of all records.
#[must_use]
pub fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// Reads all files of a run, in the order of time.
///
/// # Errors
/// A file cannot be read, or holds a line that is no record. A last line without its end is passed over: its process was
/// killed while it wrote.
pub fn read(folder: &Path) -> Result<Vec<Record>, HistoryError> {
    let say =
        |path: &Path, error: &dyn std::fmt::Display| HistoryError(format!("{}: {error}", path.display()));
    let entries = std::fs::read_dir(folder).map_err(|error| say(folder, &error))?;
    let mut records = Vec::new();
    for entry in entries {
        let path: PathBuf = entry.map_err(|error| say(folder, &error))?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| say(&path, &error))?;
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            records.push(serde_json::from_str::<Record>(line).map_err(|error| say(&path, &error))?);
        }
    }
    records.sort_by_key(|record| record.at_us);
    Ok(records)
}
