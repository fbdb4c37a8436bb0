//! A shell process that cleans up after us.
//!
//! ```text
//! owner ──stdin──▶ sh script ──▶ initdb, pg_ctl / docker
//!       ◀─stdout── "ok" | "failed"
//! ```
//!
//! The script's input ends when the owner drops the [`Supervisor`] or dies; then it stops the server and
//! removes what it made. It is in a process group of its own, so a Ctrl-C for the owner does not reach it.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::error::other;

/// Whom the script runs as, where the owner is root: the server programs refuse root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunAs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    // `None` once the script was told that its work is over.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Supervisor {
    pub(crate) fn spawn(script: &str, args: &[&Path], run_as: Option<RunAs>) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(script)
            .arg("outbox-dev-supervisor")
            .args(args);
        command.current_dir("/").env_clear().env("LC_ALL", "C");
        for name in ["PATH", "DOCKER_HOST", "HOME"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Some(RunAs { uid, gid }) = run_as {
            command.uid(uid).gid(gid);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| other("the supervisor has no output"))?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Blocks until the script has obeyed.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .ok_or_else(|| other("the supervisor is gone"))?;
        stdin.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer)?;
        match answer.trim_end() {
            "ok" => Ok(()),
            "failed" => Err(other(format!("{line:?} failed"))),
            _ => Err(other("the supervisor died")),
        }
    }
}

impl Drop for Supervisor {
    /// Blocks until the server is gone, a fraction of a second.
    fn drop(&mut self) {
        self.stdin = None;
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "lost the supervisor of a dev server");
        }
    }
}
