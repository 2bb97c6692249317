//! Results of tests: a list for people, TAP, and JUnit's XML.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use edgefaas_client::output;
use quick_xml::Writer;
use quick_xml::events::BytesText;

/// Result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped,
    Failed {
        /// Reason and, below it, its details.
        message: String,
    },
}

/// A test.
#[derive(Debug, Clone)]
pub struct Tested {
    pub name: String,
    pub outcome: Outcome,
    pub duration: Duration,
}

/// The tests of a file.
#[derive(Debug, Clone)]
pub struct File {
    /// Path in the app folder.
    pub path: String,
    pub tests: Vec<Tested>,
}

/// Numbers of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    /// Numbers of files.
    pub fn of(files: &[File]) -> Self {
        let mut counts = Self::default();
        for test in files.iter().flat_map(|file| &file.tests) {
            match test.outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Skipped => counts.skipped += 1,
                Outcome::Failed { .. } => counts.failed += 1,
            }
        }
        counts
    }

    /// All of them.
    pub fn all(self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

/// Lines for people about a file.
pub fn list(file: &File) -> String {
    let mut text = format!("{}\n", output::line(&file.path));
    for test in &file.tests {
        let name = output::line(&test.name);
        let ms = test.duration.as_millis();
        let _ = match &test.outcome {
            Outcome::Passed => writeln!(text, "  ok       {name} ({ms} ms)"),
            Outcome::Skipped => writeln!(text, "  skipped  {name}"),
            Outcome::Failed { message } => {
                let message = output::indented(message).replace('\n', "\n       ");
                writeln!(text, "  FAILED   {name} ({ms} ms)\n           {message}")
            }
        };
    }
    text
}

/// TAP 14 (testanything.org) of all files.
pub fn tap(files: &[File]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", Counts::of(files).all());
    let tests = files.iter().flat_map(|file| file.tests.iter().map(move |test| (file, test)));
    for (number, (file, test)) in (1..).zip(tests) {
        // A `#` would begin a directive.
        let name = format!("{}: {}", output::line(&file.path), output::line(&test.name));
        let name = name.replace('\\', "\\\\").replace('#', "\\#");
        let _ = match &test.outcome {
            Outcome::Passed => writeln!(text, "ok {number} - {name}"),
            Outcome::Skipped => writeln!(text, "ok {number} - {name} # SKIP"),
            Outcome::Failed { message } => {
                // JSON is YAML.
                let message = serde_json::Value::from(message.as_str());
                writeln!(text, "not ok {number} - {name}\n  ---\n  message: {message}\n  ...")
            }
        };
    }
    text
}

/// Writes JUnit's XML, as CI servers read it.
pub fn write_junit(files: &[File], path: &Path) -> anyhow::Result<()> {
    let unwritable = || format!("{} cannot be written", path.display());
    std::fs::write(path, junit(files).with_context(unwritable)?).with_context(unwritable)
}

fn junit(files: &[File]) -> std::io::Result<Vec<u8>> {
    let seconds = |duration: Duration| format!("{:.3}", duration.as_secs_f64());
    let number = |number: usize| number.to_string();
    let mut out =
        Writer::new_with_indent(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_vec(), b' ', 2);
    let counts = Counts::of(files);
    out.create_element("testsuites")
        .with_attributes([("tests", &*number(counts.all())), ("failures", &number(counts.failed))])
        .write_inner_content(|out| {
            for file in files {
                let counts = Counts::of(std::slice::from_ref(file));
                let time = seconds(file.tests.iter().map(|test| test.duration).sum());
                out.create_element("testsuite")
                    .with_attributes([
                        ("name", &*clean(&file.path)),
                        ("tests", &number(counts.all())),
                        ("failures", &number(counts.failed)),
                        ("skipped", &number(counts.skipped)),
                        ("time", &time),
                    ])
                    .write_inner_content(|out| {
                        file.tests
                            .iter()
                            .try_for_each(|test| case(out, &file.path, test, &seconds(test.duration)))
                    })?;
            }
            Ok(())
        })?;
    let mut text = out.into_inner();
    text.push(b'\n');
    Ok(text)
}

fn case(out: &mut Writer<Vec<u8>>, file: &str, test: &Tested, time: &str) -> std::io::Result<()> {
    let (name, file) = (clean(&test.name), clean(file));
    let attributes = [("classname", &*file), ("name", &*name), ("time", time)];
    let element = out.create_element("testcase").with_attributes(attributes);
    match &test.outcome {
        Outcome::Passed => element.write_empty()?,
        Outcome::Skipped => element.write_inner_content(|out| {
            out.create_element("skipped").write_empty()?;
            Ok(())
        })?,
        Outcome::Failed { message } => element.write_inner_content(|out| {
            let message = clean(message);
            let first = message.lines().next().unwrap_or_default();
            out.create_element("failure")
                .with_attribute(("message", first))
                .write_text_content(BytesText::new(&message))?;
            Ok(())
        })?,
    };
    Ok(())
}

/// `text` without characters that XML 1.0 cannot have.
fn clean(text: &str) -> String {
    text.replace(|character: char| character.is_control() && !matches!(character, '\n' | '\t'), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<File> {
        let test = |name: &str, outcome| Tested {
            name: name.into(),
            outcome,
            duration: Duration::from_millis(1500),
        };
        let failed = Outcome::Failed { message: "1 < 2 & \u{1b}[31mred\nsecond".into() };
        let tests = vec![
            test("adds # up", Outcome::Passed),
            test("\"fails\"", failed),
            test("later", Outcome::Skipped),
        ];
        vec![File { path: "a.test.js".into(), tests }]
    }

    #[test]
    fn tap_has_a_line_for_each_test() {
        assert_eq!(
            tap(&files()),
            "TAP version 14\n1..3\nok 1 - a.test.js: adds \\# up\nnot ok 2 - a.test.js: \"fails\"\n  ---\n  message: \"1 < 2 & \
             \\u001b[31mred\\nsecond\"\n  ...\nok 3 - a.test.js: later # SKIP\n"
        );
    }

    #[test]
    fn junit_is_well_formed() {
        let text = String::from_utf8(junit(&files()).unwrap()).unwrap();
        let mut reader = quick_xml::Reader::from_str(&text);
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Eof => break,
                _ => continue,
            }
        }
        assert!(
            text.contains(
                "<testsuite name=\"a.test.js\" tests=\"3\" failures=\"1\" skipped=\"1\" time=\"4.500\">"
            ),
            "{text}"
        );
        assert!(text.contains("1 &lt; 2 &amp; \u{fffd}[31mred\nsecond</failure>"), "{text}");
    }

    #[test]
    fn the_list_cannot_be_forged() {
        let text = list(&files()[0]);
        assert!(
            text.contains(
                "  FAILED   \"fails\" (1500 ms)\n           1 < 2 & \\u{1b}[31mred\n           second\n"
            ),
            "{text}"
        );
    }
}
