//! Every command of the README, the documentation and the examples runs as it is written: each page in a machine of its own (a
//! network namespace, an empty home), fence after fence, in one shell.
//!
//! A fence with `sh` is run. One with `console` is not: it needs a second machine, an answer from a person, or a program that the tests
//! do not install.

#[path = "../node/engine_code.rs"]
mod engine_code;
mod languages;
mod pages;
mod script;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pages::{PAGES, Page};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

fn skipped(needs: &str) {
    println!("skipped: needs {needs}");
    assert!(
        std::env::var_os("EDGEFAAS_NO_SKIP").is_none(),
        "nothing may be skipped, but {needs} is missing"
    );
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// A program beside the tests' Python.
fn beside_python(program: &str) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("EDGEFAAS_TEST_PYTHON")?);
    Some(python.with_file_name(program)).filter(|path| path.exists())
}

/// The commands of a page as one script.
fn script_of(page: &Page) -> String {
    let text = std::fs::read_to_string(repository().join(page.file)).expect("the page is there");
    script::of_page(page, &text)
}

/// Runs a script as an ordinary user of a machine with no network but loopback. Whatever it leaves running is killed at its end.
fn run(script: &Path, work: &Path, environment: &[(&str, PathBuf)]) -> Output {
    // For programs that are started without HOME, such as wizer by componentize-js.
    let home = work.parent().unwrap();
    let users = home.join("users");
    std::fs::write(&users, format!("user:x:1000:1000::{}:/bin/bash\n", home.display())).unwrap();
    let enter = "[ \"$(id -u)\" = 0 ] || as_root=\"--user --map-root-user\"
        exec unshare ${as_root:-} --net --mount --pid --fork --kill-child sh -c '
            mount -t proc proc /proc && mount --bind \"$1\" /etc/passwd && ip link set lo up &&
            exec unshare --user --map-user=1000 --map-group=1000 timeout 600 bash \"$0\"' \"$0\" \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", enter]).args([script, &users]).current_dir(work).stdin(Stdio::null());
    let inherited =
        ["LANG", "RUSTUP_TOOLCHAIN"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(inherited).envs(environment.iter().map(|(name, value)| (name, value)));
    command.output().expect("a shell runs")
}

/// Crates that no function of the repository has.
const LANGUAGES: &str = "crates/cli/tests/docs/crates/Cargo.toml";

/// Downloads the crates of Rust functions: the machine of a page has no network.
fn fetch_crates() {
    for manifest in [
        "crates/sdk/Cargo.toml",
        "examples/greenhouse/functions/average/Cargo.toml",
        "crates/cli/tests/node/guests/proxy/Cargo.toml",
        LANGUAGES,
    ] {
        let mut command = Command::new("cargo");
        command.args(["fetch", "--quiet", "--locked", "--manifest-path"]).arg(repository().join(manifest));
        assert!(
            command.status().is_ok_and(|status| status.success()),
            "the crates of {manifest} cannot be had"
        );
    }
}

fn check(page: &Page) {
    let mut needed =
        vec![("unshare", "--version"), ("ip", "-V"), ("curl", "--version"), ("mosquitto_pub", "--help")];
    needed.extend(page.needs.iter().map(|program| (*program, "--version")));
    if let Some((missing, _)) = needed
        .iter()
        .find(|(program, argument)| !runs(program, argument) && beside_python(program).is_none())
    {
        return skipped(missing);
    }
    let namespaces = "[ \"$(id -u)\" = 0 ] || as_root=\"--user --map-root-user\"
        unshare ${as_root:-} --net --mount --pid --fork sh -c 'mount -t proc proc /proc && unshare --user --map-user=1000 true'";
    if !Command::new("sh")
        .args(["-c", namespaces])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return skipped("user and network namespaces");
    }
    if page.needs.contains(&"npm") && std::env::var_os("EDGEFAAS_TEST_NODE_PATH").is_none() {
        return skipped("packages of npm (EDGEFAAS_TEST_NODE_PATH)");
    }
    if page.needs.contains(&"cargo") {
        fetch_crates();
    }
    let home = tempfile::tempdir().unwrap();
    let work = home.path().join("work");
    let programs = home.path().join("bin");
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_edgefaas"), programs.join("edgefaas")).unwrap();
    for program in page.needs {
        if let Some(path) = beside_python(program) {
            std::os::unix::fs::symlink(path, programs.join(program)).unwrap();
        }
    }
    let copied = Command::new("sh")
        .arg("-c")
        .arg("tar -C \"$0\" --exclude=node_modules --exclude=target --exclude=.edgefaas -cf - README.md examples crates/sdk wit | tar -C \"$1\" -xf -")
        .args([&repository(), &work])
        .status()
        .unwrap();
    assert!(copied.success(), "the examples cannot be copied");
    let script = home.path().join("script");
    std::fs::write(&script, script_of(page)).unwrap();
    // The first node of a reader of the README starts on an empty data directory.
    if page.file != "README.md" {
        engine_code::give(&home.path().join(".local/share/edgefaas"));
    }

    let user_home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let of_user = |name: &str, folder: &str| {
        std::env::var_os(name).map_or_else(|| user_home.join(folder), PathBuf::from)
    };
    let mut path = vec![programs];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let guest_target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest");
    let mut environment = vec![
        ("HOME", home.path().to_owned()),
        ("PATH", PathBuf::from(std::env::join_paths(path).unwrap())),
        ("CARGO_HOME", of_user("CARGO_HOME", ".cargo")),
        ("RUSTUP_HOME", of_user("RUSTUP_HOME", ".rustup")),
        ("CARGO_TARGET_DIR", guest_target),
        ("CARGO_NET_OFFLINE", "true".into()),
        // `edgefaas test` keeps compiled code there.
        ("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR").into()),
    ];
    if let Some(packages) = std::env::var_os("EDGEFAAS_TEST_NODE_PATH") {
        environment.push(("EDGEFAAS_TEST_NODE_PATH", packages.into()));
    }
    if page.needs.contains(&"go") {
        let Some(packages) = languages::npm_packages() else {
            return skipped("the npm packages componentize-js and jco");
        };
        environment.push(("EDGEFAAS_TEST_COMPONENT_TOOLS", packages));
        environment.push(("EDGEFAAS_TEST_GO_MODULE", languages::go_module(&repository().join(LANGUAGES))));
    }
    let output = run(&script, &work, &environment);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {}\n{said}\n{errors}", page.file, output.status);
}

macro_rules! pages {
    ($($name:ident: $file:literal,)*) => {$(
        #[test]
        fn $name() {
            check(PAGES.iter().find(|page| page.file == $file).expect("the page is listed"));
        }
    )*
        /// The pages that have a test above.
        const TESTED: &[&str] = &[$($file),*];
    };
}

pages! {
    readme: "README.md",
    bridges: "docs/bridges.md",
    broker: "docs/broker.md",
    cli: "docs/cli.md",
    cluster: "docs/cluster.md",
    components: "docs/components.md",
    javascript: "docs/javascript.md",
    manifest: "docs/manifest.md",
    objects: "docs/objects.md",
    operations: "docs/operations.md",
    placement: "docs/placement.md",
    security: "docs/security.md",
    testing: "docs/testing.md",
    workflows: "docs/workflows.md",
    rust_sdk: "crates/sdk/README.md",
    field_kit: "examples/field-kit/README.md",
    greenhouse: "examples/greenhouse/README.md",
    hono: "examples/hono/README.md",
    map_reduce: "examples/map-reduce/README.md",
    people_counter: "examples/people-counter/README.md",
    saga: "examples/saga/README.md",
    silence: "examples/silence/README.md",
}

/// No page with commands is left out, and none is listed that has none.
#[test]
fn all_pages_are_run() {
    let root = repository();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["", "docs", "examples", "crates/sdk", "packaging"]
        .iter()
        .map(|folder| root.join(folder))
        .collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let is_skipped = ["node_modules", "target"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && folder != root && !is_skipped {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                if !script::fences(&text).is_empty() {
                    found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found.sort();
    let elsewhere = |file: &&String| pages::ELSEWHERE.iter().any(|(page, _)| page == file);
    let mut listed: Vec<&str> = TESTED.to_vec();
    listed.sort_unstable();
    assert_eq!(found.iter().filter(|file| !elsewhere(file)).collect::<Vec<_>>(), listed);
    assert_eq!(PAGES.len(), TESTED.len());
    for (page, _) in pages::ELSEWHERE {
        assert!(found.iter().any(|file| file == page), "{page} has no commands");
    }
}
