//! What a user sees who gets the signature wrong.

#[test]
fn wrong_functions_are_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
