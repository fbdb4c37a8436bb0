//! Children: started with their configuration on stdin, ended by signals, never left behind.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// A running child. Dropped, it is killed.
#[derive(Debug)]
pub struct Child {
    process: Process,
    /// The child ends when this closes.
    _stdin: ChildStdin,
}

impl Child {
    /// Starts `program kind` with its configuration.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: impl AsRef<OsStr>, kind: &str, config: &impl Serialize) -> io::Result<Self> {
        let mut process = Command::new(program)
            .arg(kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut stdin = process
            .stdin
            .take()
            .ok_or_else(|| io::Error::other("the child has no input"))?;
        let mut line = serde_json::to_vec(config)?;
        line.push(b'\n');
        stdin.write_all(&line)?;
        Ok(Self {
            process,
            _stdin: stdin,
        })
    }

    /// Ends it without a chance to say good-bye.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks it to stop in good order (SIGTERM).
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn stop(&self) -> io::Result<()> {
        self.send(Signal::TERM)
    }

    /// Holds it still (SIGSTOP).
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn pause(&self) -> io::Result<()> {
        self.send(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn resume(&self) -> io::Result<()> {
        self.send(Signal::CONT)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        // The process was not waited for, so the number is still its own.
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It is still running after `patience`.
    pub async fn end(mut self, patience: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("a child still runs after {patience:?}")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
