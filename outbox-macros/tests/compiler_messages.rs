//! What the compiler says about right and wrong uses. Messages of ours are compared; where the compiler adds its own words,
//! they may change with it: `TRYBUILD=overwrite` takes them over.

#[test]
fn right_uses_compile_and_wrong_ones_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/accepted/*.rs");
    cases.compile_fail("tests/refused/*.rs");
}
