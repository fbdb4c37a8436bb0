//! TLS and SASL: a listener whose certificate is right, one of another authority, one of another host; a password that is
//! right, and a wrong one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outbox_core::{Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, FailureKind, Payload};
use outbox_dev::{DevKafka, KafkaOptions};
use outbox_kafka::{DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicName, TopicRule};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tokio::time::Instant;

const SECRET: &str = "s3cret-passphrase";

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// An authority and a certificate of its for `host`, as PEM.
fn certificates(dir: &Path, host: &str) {
    openssl(
        dir,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
    );
    openssl(
        dir,
        "req -newkey rsa:2048 -nodes -subj /CN=broker -keyout broker.key -out broker.csr",
    );
    std::fs::write(dir.join("san"), format!("subjectAltName={host}")).unwrap();
    openssl(
        dir,
        "x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san -out broker.pem",
    );
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    std::fs::write(dir.join("keystore.pem"), read("broker.key") + &read("broker.pem")).unwrap();
}

/// A broker with a listener of that protocol beside the plain one, and its port.
async fn broker(dir: &Path, protocol: &str, properties: &str) -> (DevKafka, u16) {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let plain = 15_000 + port % 5_000;
    let properties = format!(
        "{properties}\nlisteners=PLAINTEXT://127.0.0.1:{plain},{protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{plain},{protocol}://127.0.0.1:{port}\n\
         controller.quorum.bootstrap.servers=127.0.0.1:{}\n\
         ssl.keystore.type=PEM\nssl.keystore.location={}\n",
        plain + 10_000,
        plain + 10_000,
        dir.join("keystore.pem").display()
    );
    let broker = DevKafka::start_with(KafkaOptions::default().with_properties(&properties))
        .await
        .unwrap();
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", format!("127.0.0.1:{plain}"))
        .create()
        .unwrap();
    let topic = NewTopic::new("safe", 1, TopicReplication::Fixed(1));
    for created in admin.create_topics([&topic], &AdminOptions::new()).await.unwrap() {
        created.unwrap();
    }
    (broker, port)
}

fn tls(port: u16, authority: &Path) -> KafkaSettings {
    KafkaSettings::new(format!("127.0.0.1:{port}"))
        .with("security.protocol", "SSL")
        .with("ssl.key.password", SECRET)
        .with("ssl.ca.location", authority.display().to_string())
}

async fn deliver(settings: KafkaSettings) -> Result<Delivered, outbox_core::Failure> {
    let mapping = RecordMapping::new(TopicRule::fixed(TopicName::new("safe").unwrap()));
    let options = DispatcherOptions::default().with_delivery_timeout(Duration::from_secs(5));
    let dispatcher = KafkaDispatcher::new(&settings, mapping, options).unwrap();
    assert!(!format!("{settings:?} {dispatcher:?}").contains(SECRET));
    let event_type = EventType::new("A").unwrap();
    let envelope = Envelope::new(
        EventId::new(),
        event_type,
        Payload::from_json("{}"),
        Timestamp::UNIX_EPOCH,
    );
    let delivery = Delivery::new(Arc::new(envelope), Instant::now() + Duration::from_secs(20));
    dispatcher.dispatch(&delivery).await
}

fn folder(name: &str) -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("outbox-tls-{name}-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_is_trusted_for_its_authority_only() {
    let (right, wrong) = (folder("right"), folder("wrong"));
    certificates(&right, "IP:127.0.0.1");
    certificates(&wrong, "IP:127.0.0.1");
    let (_broker, port) = broker(&right, "SSL", "").await;

    let delivered = deliver(tls(port, &right.join("ca.pem"))).await;
    let refused = deliver(tls(port, &wrong.join("ca.pem"))).await.unwrap_err();

    assert_eq!(delivered.unwrap(), Delivered::Handled);
    assert_eq!(refused.kind, FailureKind::Outage);
    assert!(!format!("{refused:?}").contains(SECRET));
    for dir in [right, wrong] {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_host_is_refused() {
    let dir = folder("host");
    certificates(&dir, "DNS:elsewhere.example");
    let (_broker, port) = broker(&dir, "SSL", "").await;

    let refused = deliver(tls(port, &dir.join("ca.pem"))).await.unwrap_err();

    assert_eq!(refused.kind, FailureKind::Outage);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_an_outage_that_names_no_password() {
    let dir = folder("sasl");
    certificates(&dir, "IP:127.0.0.1");
    let login = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let properties = format!(
        "listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN\n\
         listener.name.sasl_ssl.plain.sasl.jaas.config={login} user_shop=\"{SECRET}\";"
    );
    let (_broker, port) = broker(&dir, "SASL_SSL", &properties).await;
    let settings = |password: &str| {
        tls(port, &dir.join("ca.pem"))
            .with("security.protocol", "SASL_SSL")
            .with("sasl.mechanisms", "PLAIN")
            .with("sasl.username", "shop")
            .with("sasl.password", password)
    };

    let delivered = deliver(settings(SECRET)).await;
    let refused = deliver(settings("an0ther-secret")).await.unwrap_err();

    assert_eq!(delivered.unwrap(), Delivered::Handled);
    assert_eq!(refused.kind, FailureKind::Outage);
    assert!(!format!("{refused:?}").contains("an0ther-secret"));
    std::fs::remove_dir_all(dir).unwrap();
}
