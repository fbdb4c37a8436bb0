//! The examples run, and say what they should.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

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
fn example(name: &str) -> Command {
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

#[test]
fn the_quickstart_counts_what_it_should() {
    let output = example("quickstart").output().unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text.matches("will retry: the server is down").count(),
        3,
        "{text}"
    );
    assert_eq!(text.matches("gives up: no unicorns").count(), 1, "{text}");
    let (_, summary) = text.split_once("what the database says:\n").unwrap();
    let expected = "  orders committed          10   right
  events stored             10   right
  completed                  9   right
  completed after a retry    3   right
  dead letters               1   right
  handled by billing        10   right
  handled by mail           10   right
  handled by warehouse       9   right
  handled, yet rolled back   0   right
";
    assert_eq!(summary, expected);
}

struct OpenShop {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl OpenShop {
    fn open() -> Self {
        let mut child = example("shop").env("PORT", "0").process_group(0).spawn().unwrap();
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
    fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn wait_for(&self, path: &str, expected: &str) {
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

    fn close(mut self) -> String {
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

#[test]
fn the_shop_follows_its_orders_by_events() {
    let shop = OpenShop::open();

    let (status, placed) = shop.request(
        "POST",
        "/orders",
        r#"{"customer":"ada","item":"book","cents":1900}"#,
    );
    assert_eq!(status, 201, "{placed}");
    assert_eq!(
        placed,
        r#"{"id":1,"customer":"ada","item":"book","cents":1900,"state":"placed"}"#
    );
    let (status, _) = shop.request(
        "POST",
        "/orders",
        r#"{"customer":"bob","item":"yacht","cents":90000000}"#,
    );
    assert_eq!(status, 201);
    assert_eq!(shop.request("GET", "/orders/3", "").0, 404);

    shop.wait_for("/orders/1", r#""state":"shipped""#);
    shop.wait_for("/orders/2", r#""state":"cancelled""#);
    shop.wait_for(
        "/mails/ada",
        r#"["thank you for order 1","order 1 is on its way"]"#,
    );
    shop.wait_for(
        "/mails/bob",
        r#"["thank you for order 2","order 2 could not be charged"]"#,
    );
    // Two orders, one paid and sent, one declined.
    assert_eq!(shop.close(), "the shop is closed; events completed: 5\n");
}
