//! What the attribute accepts, and what a user sees who gets the signature wrong.

#[test]
fn functions_may_have_any_name() {
    trybuild::TestCases::new().pass("tests/ui/names.rs");
}

#[test]
fn wrong_functions_are_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/wrong/*.rs");
}
