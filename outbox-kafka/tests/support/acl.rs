//! A broker that checks rights, and rules about its topics.

use std::io::{Read, Write};
use std::net::TcpStream;

use outbox_dev::{DevKafka, KafkaOptions};

use super::wire::{Reader, number, put_text};

/// Everybody may do everything with what there is no rule about.
const PROPERTIES: &str = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true";

/// What can be denied, by its number in the protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Write = 4,
    Describe = 8,
    DescribeConfigs = 10,
}

pub(crate) async fn broker() -> DevKafka {
    let options = KafkaOptions::default().with_properties(PROPERTIES);
    DevKafka::start_with(options).await.unwrap()
}

/// Denies everybody an operation on a topic, and leaves them all others.
pub(crate) async fn deny(bootstrap: &str, topic: &str, operation: Operation) {
    const ALL: u8 = 2;
    const DENY: u8 = 2;
    const ALLOW: u8 = 3;
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
    let creating = tokio::task::spawn_blocking(move || {
        create(&bootstrap, &topic, &[(ALL, ALLOW), (operation as u8, DENY)]);
    });
    creating.await.unwrap();
}

/// CreateAcls, version 1: the client library has no call for it.
fn create(bootstrap: &str, topic: &str, rules: &[(u8, u8)]) {
    const TOPIC: u8 = 2;
    const LITERAL: u8 = 3;
    let mut request = vec![0, 30, 0, 1, 0, 0, 0, 1];
    put_text(&mut request, "acl");
    request.extend((rules.len() as i32).to_be_bytes());
    for (operation, permission) in rules {
        request.push(TOPIC);
        put_text(&mut request, topic);
        request.push(LITERAL);
        put_text(&mut request, "User:ANONYMOUS");
        put_text(&mut request, "*");
        request.extend([*operation, *permission]);
    }
    let mut stream = TcpStream::connect(bootstrap).unwrap();
    stream.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; number(&size) as usize];
    stream.read_exact(&mut answer).unwrap();
    let mut answer = Reader(&answer);
    // Of which request, and for how long to wait.
    answer.take(8);
    for _ in 0..answer.int32() {
        let (code, why) = (answer.int16(), answer.text());
        assert_eq!(code, 0, "{why:?}");
    }
}
