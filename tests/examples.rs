//! The examples run, and say what they should.

#[path = "support/shop.rs"]
mod shop;

use shop::{OpenShop, example};

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

#[test]
fn the_shop_follows_its_orders_by_events() {
    let shop = OpenShop::open(&[]);

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
