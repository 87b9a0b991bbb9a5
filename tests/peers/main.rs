//! t
#[test]
fn t() { assert!(std::path::Path::new(env!("CARGO_BIN_EXE_scripted-upstream")).exists()); assert!(cfg!(feature="test-fakes")); }
