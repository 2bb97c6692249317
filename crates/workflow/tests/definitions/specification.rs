//! The example files of the specification: which of them can be deployed, and why the others are refused.
//!
//! The table has the name of each file of the folder `examples` of the specification, with a definition of our own that has the same
//! parts.

use edgefaas_workflow::compile_for_deploy;

use crate::refused::HEAD;

/// `== NAME`, the definition and, if it is refused, `! ` with a part of the message.
const EXAMPLES: &str = include_str!("specification.txt");
/// The number of example files.
const FILES: usize = 66;
/// The number of those that can be deployed.
const DEPLOYED: usize = 49;

#[test]
fn each_example_is_deployed_or_refused_with_its_reason() {
    let (mut wrong, mut files, mut deployed) = (Vec::new(), 0, 0);
    for example in EXAMPLES.trim_start_matches("== ").split("\n== ") {
        let (name, rest) = example.split_once('\n').unwrap();
        let definition: Vec<&str> = rest.lines().filter(|line| !line.starts_with("! ")).collect();
        let wanted = rest.lines().find_map(|line| line.strip_prefix("! "));
        files += 1;
        let found = compile_for_deploy(&format!("{HEAD}\n{}", definition.join("\n")), name);
        match (found, wanted) {
            (Ok(_), None) => deployed += 1,
            (Ok(_), Some(wanted)) => wrong.push(format!("{name}: it is not refused: {wanted}")),
            (Err(error), Some(wanted)) if error.to_string().contains(wanted) => {}
            (Err(error), _) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((files, deployed), (FILES, DEPLOYED));
}
