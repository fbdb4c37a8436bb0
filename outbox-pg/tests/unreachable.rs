//! What a start says about a server that is not there: at once, where it looked and why.

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use outbox_core::SourceErrorKind;
use outbox_pg::{PgSource, StartError};
use sqlx::postgres::PgConnectOptions;

const PATIENCE: Duration = Duration::from_secs(60);

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn told_where(error: &StartError, address: &str, why: &str) {
    let StartError::Source(source) = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), SourceErrorKind::Unavailable);
    let said = chain(error);
    assert!(said.contains(&format!("cannot connect to {address}")), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(!format!("{said} {error:?}").contains("secret"), "{said}");
}

#[tokio::test]
async fn a_closed_port_is_told_at_once_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let options: PgConnectOptions = format!("postgres://ada:secret@{address}/none").parse().unwrap();

    // Who waited for the deadline would not be back in time.
    let source = PgSource::builder(options).deadline(PATIENCE * 60);
    for source in [source.clone(), source.pooler()] {
        let refusal = tokio::time::timeout(PATIENCE, source.start()).await.unwrap();
        told_where(&refusal.unwrap_err(), &address, "refused");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_told_with_its_address() {
    // Connections are taken by the system, and nobody answers them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options: PgConnectOptions = format!("postgres://ada:secret@{address}/none").parse().unwrap();

    let source = PgSource::builder(options).deadline(Duration::from_millis(200));
    let refusal = source.start().await.unwrap_err();
    told_where(&refusal, &address, "no answer within 200ms");
}
