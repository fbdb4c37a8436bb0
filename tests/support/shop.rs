//! The examples as processes, and the shop as its customers see it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// `cargo test` builds the examples beside the tests, unless told which targets to build.
pub(crate) fn example(name: &str) -> Command {
    let this_test = std::env::current_exe().unwrap();
    let program = this_test
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples")
        .join(name);
    assert!(program.exists(), "build it first: cargo build --examples");
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

pub(crate) struct OpenShop {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl OpenShop {
    /// A shop with these settings.
    pub(crate) fn open(settings: &[(&str, &str)]) -> Self {
        let mut command = example("shop");
        command
            .env("PORT", "0")
            .envs(settings.iter().copied())
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("the shop is open at http://")
            .unwrap()
            .to_owned();
        Self {
            child,
            stdout,
            address,
        }
    }

    /// Status and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.request_with("", method, path, body)
    }

    /// The same with more header lines.
    pub(crate) fn request_with(&self, headers: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{headers}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    pub(crate) fn wait_for(&self, path: &str, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.request("GET", path, "");
            if answer.1.contains(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "no {expected} in {answer:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn close(mut self) -> String {
        let group = format!("-{}", self.child.id());
        assert!(
            Command::new("kill")
                .args(["-s", "INT", "--", &group])
                .status()
                .unwrap()
                .success()
        );
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for OpenShop {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _ = self.child.wait();
    }
}
