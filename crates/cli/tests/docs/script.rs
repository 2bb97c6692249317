//! The fences of a page as one shell script.

use std::fmt::Write as _;

use crate::pages::Page;

/// What a reader has that a script has not: patience, a second terminal, and no wish to build the node again.
const READER: &str = r#"
set -Eeuo pipefail
trap 'echo "failed: $BASH_COMMAND" >&2; tail -n 30 ~/*.log >&2' ERR
cargo() {
  case "$*" in
    "run --release -- "*) shift 3; edgefaas "$@" ;;
    "test --release --workspace" | "install --path crates/cli") ;;
    *) command cargo "$@" ;;
  esac
}
# There is no network: the packages of the tests are copied.
npm() {
  local folder=. names=()
  shift
  while (($#)); do
    case $1 in --prefix) folder=$2; shift 2 ;; -*) shift ;; *) names+=("$1"); shift ;; esac
  done
  ((${#names[@]})) || names=(hono)
  mkdir -p "$folder/node_modules"
  for name in "${names[@]}"; do cp -r "$EDGEFAAS_TEST_NODE_PATH/$name" "$folder/node_modules"; done
}
curl() {
  # Its own `-f`, beside which the other one is refused.
  if [[ " $* " =~ \ -[a-zA-Z]*f ]]; then command curl --max-time 60 "$@"
  else command curl --show-error --fail-with-body --max-time 60 "$@"; fi
}
# Waits until a command succeeds.
until_true() {
  for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
  echo "never: $*" >&2; return 1
}
is_ready() { command curl -sf "http://127.0.0.1:$1/readyz"; }
is_deployed() { (cd "$1" && edgefaas list -o json | grep -q '"revision"'); }
is_stopped() { ! is_ready "$1"; }
answers() { command curl -sf "$1"; }
# Ctrl-C in the other terminals: all other processes of the namespace.
stop_all() { kill -TERM -1; until_true is_stopped 7070; kill -KILL -1; wait || true; }
"#;

/// A fenced block.
pub struct Fence {
    /// The line of its first command, counted from 1.
    pub line: usize,
    /// Its lines.
    pub text: String,
}

/// The fences with `sh` of a page.
pub fn fences(page: &str) -> Vec<Fence> {
    let mut found: Vec<Fence> = Vec::new();
    let mut inside = None;
    for (number, line) in page.lines().enumerate() {
        match (inside, line.trim_end()) {
            (None, "```sh") => {
                inside = Some(true);
                found.push(Fence { line: number + 2, text: String::new() });
            }
            (None, line) if line.starts_with("```") => inside = Some(false),
            (Some(_), "```") => inside = None,
            (Some(true), _) => {
                let fence = found.last_mut().expect("a fence has begun");
                fence.text += line;
                fence.text.push('\n');
            }
            _ => {}
        }
    }
    found
}

/// The fenced block of a language that a page begins with.
pub fn first(page: &str, language: &str) -> Option<String> {
    let block = page.split_once(&format!("```{language}\n"))?.1;
    Some(block.split_once("```")?.0.to_owned())
}

/// How a line runs.
enum Line<'a> {
    /// It ends by itself.
    Ends,
    /// A node that runs until it is stopped: in a terminal of its own. The command without its comment.
    Node { command: &'a str },
    /// A node in the background.
    BackgroundNode,
    /// It shows what happens, until it is stopped.
    Follows { command: &'a str },
    /// It ends after some time with mosquitto's exit code for it.
    TimesOut { command: &'a str },
    /// Its comment says that the answer is an error.
    Refused { command: &'a str },
}

fn kind(line: &str) -> Line<'_> {
    let comment = line.match_indices('#').find(|(at, _)| line[..*at].ends_with([' ', '\t']));
    let command = comment.map_or(line, |(at, _)| &line[..at]).trim_end();
    let words: Vec<&str> = command.split_whitespace().collect();
    let begins = |with: &str| command.starts_with(with);
    let is_background = command.ends_with('&');
    let is_node = begins("edgefaas run")
        || begins("edgefaas dev")
        || begins("cargo run --release -- dev")
        || begins("examples/people-counter/two-nodes.sh");
    let has = |option: &str| words.contains(&option);
    let follows = begins("mosquitto_sub") && !has("-C") && !has("-W")
        || has("objects") && has("watch")
        || has("logs") && has("-f");
    if begins("mosquitto_sub") && has("-W") {
        return Line::TimesOut { command };
    }
    if comment.is_some_and(|(at, _)| line[at..].contains(" 404")) {
        return Line::Refused { command };
    }
    match (is_node, is_background, follows) {
        (true, true, _) => Line::BackgroundNode,
        (true, false, _) => Line::Node { command },
        (_, false, true) => Line::Follows { command },
        _ => Line::Ends,
    }
}

/// The wait until the node that a command starts can be used.
fn wait(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    if command.contains("two-nodes.sh") {
        return "until_true answers http://127.0.0.1:8181/people\nuntil_true answers http://127.0.0.1:8182/people\n".to_owned();
    }
    let control = words.iter().position(|word| *word == "--control").and_then(|at| words.get(at + 1));
    let port = control.and_then(|address| address.rsplit_once(':')).map_or("7070", |(_, port)| port);
    let mut wait = format!("until_true is_ready {port}\n");
    if let Some(at) = words.iter().position(|word| *word == "dev") {
        let _ = writeln!(wait, "until_true is_deployed {}", words.get(at + 1).unwrap_or(&"."));
    }
    wait
}

/// The script of a page.
pub fn of_page(page: &Page, text: &str) -> String {
    let mut script = READER.to_owned();
    for (language, file) in page.files {
        let block = first(text, language).expect("the page has such a block");
        let _ = writeln!(script, "cat >{file} <<'END OF FILE'\n{block}END OF FILE");
    }
    script += page.before;
    script.push('\n');
    for (index, fence) in fences(text).iter().enumerate() {
        let _ = writeln!(script, "{}", page.each);
        let between = page.between.iter().filter(|(before, _)| *before == index);
        between.for_each(|(_, commands)| {
            let _ = writeln!(script, "{commands}");
        });
        let _ = writeln!(script, "echo '== {}:{}'", page.file, fence.line);
        for (number, line) in fence.text.lines().enumerate() {
            match kind(line) {
                Line::Ends => {
                    let _ = writeln!(script, "{line}");
                }
                Line::BackgroundNode => {
                    let _ = writeln!(script, "{line}\n{}", wait(line));
                }
                Line::Node { command } => {
                    let log = format!("~/node-{index}-{number}.log");
                    let _ = writeln!(script, "{command} >{log} 2>&1 &\n{}", wait(command));
                }
                Line::TimesOut { command } => {
                    let _ = writeln!(script, "{command} || [ $? = 27 ]");
                }
                Line::Refused { command } => {
                    let _ = writeln!(script, "if {command}; then false; fi");
                }
                Line::Follows { command } => {
                    let _ = writeln!(script, "{command} >~/follow-{index}-{number}.log 2>&1 &");
                }
            }
        }
    }
    script += &(page.after)(text);
    script
}
