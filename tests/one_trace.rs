//! One trace in a real receiver of OTLP: a request to the shop, and all that follows from it over a restart.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

#[path = "support/shop.rs"]
mod shop;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::{Span, span::SpanKind},
};
use outbox_dev::TestDatabase;
use shop::OpenShop;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Keeps every span that arrives.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
        self.0
            .lock()
            .unwrap()
            .extend(scopes.flat_map(|scope| scope.spans));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    /// The spans of that name in the order of their beginning.
    fn spans(&self, name: &str) -> Vec<Span> {
        let mut spans = self.0.lock().unwrap().clone();
        spans.retain(|span| span.name == name);
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    fn one(&self, name: &str) -> Span {
        let [span] = <[Span; 1]>::try_from(self.spans(name)).unwrap();
        span
    }

    /// The only span of that name among the children of another.
    fn child(&self, parent: &Span, name: &str) -> Span {
        let mut spans = self.spans(name);
        spans.retain(|span| span.parent_span_id == parent.span_id);
        assert_eq!(spans.len(), 1, "{name} below {}: {spans:?}", parent.name);
        spans.remove(0)
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_spans_the_request_and_all_that_follows_over_a_restart_of_the_shop() {
    let database = TestDatabase::create().await.unwrap();
    let receiver = Receiver::default();
    let endpoint = format!("http://{}", receiver.listen().await);
    let settings = [
        ("SHOP_DATABASE_URL", database.url()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
    ];

    // It takes the order, and is gone before anything is delivered.
    let before = OpenShop::open(&[&settings[..], &[("SHOP_RELAY", "off")]].concat());
    let (status, _) = before.request_with(
        &format!("traceparent: 00-{TRACE}-{CALLER}-01\r\nbaggage: campaign=spring\r\n"),
        "POST",
        "/orders",
        r#"{"customer":"ada","item":"book","cents":1900}"#,
    );
    assert_eq!(status, 201);
    assert_eq!(before.close(), "the shop is closed; events completed: 0\n");
    let request = receiver.one("POST /orders");
    assert_eq!(receiver.spans("shared.consume_OrderPlaced"), []);

    let after = OpenShop::open(&settings);
    after.wait_for("/orders/1", r#""state":"shipped""#);
    after.wait_for(
        "/mails/ada",
        r#"["thank you for order 1","order 1 is on its way"]"#,
    );
    assert_eq!(after.close(), "the shop is closed; events completed: 3\n");

    // What the caller attached goes with every event.
    let attached = "SELECT count(*) FROM outbox.outbox WHERE headers ->> 'baggage' = 'campaign=spring'";
    let attached: i64 = sqlx::query_scalar(attached)
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(attached, 3);

    // Request ─▶ OrderPlaced ─▶ PaymentTaken ─▶ ParcelSent; the mail server refuses every first try.
    assert_eq!(hex(&request.parent_span_id), CALLER);
    let placed = receiver.spans("shared.consume_OrderPlaced");
    assert_eq!(placed.len(), 2);
    let charged = receiver.child(&placed[0], "billing");
    let paid = receiver.one("shared.consume_PaymentTaken");
    let sent_off = receiver.child(&paid, "shipping");
    let sent = receiver.spans("shared.consume_ParcelSent");
    assert_eq!(sent.len(), 2);
    for (publisher, deliveries) in [
        (&request, &placed[..]),
        (&charged, std::slice::from_ref(&paid)),
        (&sent_off, &sent[..]),
    ] {
        for delivery in deliveries {
            assert_eq!(delivery.parent_span_id, publisher.span_id, "{delivery:?}");
            assert_eq!(delivery.kind(), SpanKind::Consumer);
        }
    }
    for tries in [&placed, &sent] {
        receiver.child(&tries[0], "mail");
        receiver.child(&tries[1], "mail");
        let linked: Vec<_> = tries.iter().flat_map(|span| &span.links).collect();
        assert_eq!(linked.len(), 1, "the retry alone is linked");
        assert_eq!(tries[1].links[0].span_id, tries[0].span_id);
    }
    let others = receiver.0.lock().unwrap().clone();
    let deliveries = others.iter().filter(|span| span.name.starts_with("shared."));
    for span in deliveries.chain([&request, &charged, &sent_off]) {
        assert_eq!(hex(&span.trace_id), TRACE, "{}", span.name);
    }
}
