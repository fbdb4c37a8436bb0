//! A record that no client library would write, put on a topic by hand.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::wire::put_text;

/// Puts a record on the first partition of a topic, with one header of that name, which may be any bytes.
pub(crate) async fn publish_with_header(bootstrap: &str, topic: &str, name: &[u8]) {
    let batch = batch(&record(name));
    let mut request = Vec::new();
    // Produce, version 3, as request 1.
    request.extend([0, 0, 0, 3, 0, 0, 0, 1]);
    put_text(&mut request, "raw");
    // In no transaction, when all replicas have it, within half a minute: of one topic one partition, the first.
    request.extend((-1_i16).to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    request.extend(30_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    put_text(&mut request, topic);
    request.extend(1_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes());
    request.extend((batch.len() as i32).to_be_bytes());
    request.extend(batch);

    let mut stream = TcpStream::connect(bootstrap).await.unwrap();
    stream.write_u32(request.len() as u32).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut answer = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut answer).await.unwrap();
    // The request, one topic, its name, one partition, its number, the error.
    let error = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[error..error + 2], [0, 0], "it is refused");
}

/// A length below 64, as records have them.
fn length(bytes: &[u8]) -> u8 {
    assert!(bytes.len() < 64);
    (bytes.len() as u8) << 1
}

/// Without a key, its value `{}`.
fn record(name: &[u8]) -> Vec<u8> {
    // Attributes, time, offset, no key, a value, one header with an empty value.
    let mut body = vec![0, 0, 0, 1, 4, b'{', b'}', 2, length(name)];
    body.extend(name);
    body.push(0);
    let mut record = vec![length(&body)];
    record.extend(body);
    record
}

fn batch(record: &[u8]) -> Vec<u8> {
    let mut checked = Vec::new();
    // Not compressed; one record; written in 1970.
    checked.extend(0_i16.to_be_bytes());
    checked.extend(0_i32.to_be_bytes());
    checked.extend([0; 16]);
    // By no idempotent producer.
    checked.extend((-1_i64).to_be_bytes());
    checked.extend((-1_i16).to_be_bytes());
    checked.extend((-1_i32).to_be_bytes());
    checked.extend(1_i32.to_be_bytes());
    checked.extend(record);
    let mut batch = vec![0; 8];
    batch.extend((9 + checked.len() as i32).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    !crc
}
