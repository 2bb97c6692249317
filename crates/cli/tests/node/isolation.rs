//! What one invocation can learn of another one, of another function and of another app: nothing.

use std::collections::BTreeSet;

use crate::support::{Running, component, has_wasm_target, skipped};

fn ask(node: &Running, function: &str, what: &str) -> String {
    let (status, body) = node.http("POST", &format!("/fn/{function}"), what);
    assert_eq!(status, 200, "{function} {what}: {body}");
    body
}

/// A node with one thread, so that each isolate has the place of the one before.
fn node(home: &std::path::Path) -> Running {
    let config = home.join("node.toml");
    std::fs::write(&config, "workers = 1\n").unwrap();
    Running::start(&home.join("data"), &["--config", config.to_str().unwrap()])
}

#[test]
fn memory_of_an_invocation_is_not_that_of_an_earlier_one() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    // The same component as two functions.
    let manifest =
        "app = \"two\"\n[functions.one]\nmain = \"reach.wasm\"\n[functions.other]\nmain = \"reach.wasm\"\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::copy(component("reach"), app.join("reach.wasm")).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    for round in 0..50 {
        let planted: usize = ask(&node, "one", &format!("plant {round}")).parse().unwrap();
        assert!(planted > 500_000, "the scan finds what is there: {planted}");
        assert_eq!(ask(&node, "one", &format!("scan {round}")), "0", "after {round}");
        assert_eq!(ask(&node, "other", &format!("scan {round}")), "0", "after {round}");
    }
}

#[test]
fn globals_of_an_invocation_are_not_those_of_an_earlier_one() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let file = home.path().join("globals.js");
    let source = r#"
        let own = "as deployed";
        const map = new Map([["a", 1]]);
        const tagged = (strings) => strings;
        function counter() { counter.calls = (counter.calls ?? 0) + 1; return counter.calls; }
        export default async (event) => {
          const seen = [
            own, [...map], globalThis.left, counter(), Array.prototype.left, Object.left, JSON.left, console.left,
            Object.keys(globalThis), /x/g.lastIndex, event.left, typeof setTimeout, JSON.stringify([1]),
            [3, 1, 2].sort().join(), tagged`x`.left, Symbol.for("left").description, import.meta.left,
          ];
          own = "changed"; map.set("b", 2); globalThis.left = 1; globalThis[Symbol.for("left")] = 1;
          Array.prototype.left = 1; Object.left = 1; JSON.left = 1; console.left = 1; event.left = 1; import.meta.left = 1;
          JSON.stringify = () => "stolen"; Array.prototype.sort = () => ["stolen"];
          globalThis.setTimeout = "stolen"; Object.freeze(globalThis.Map.prototype);
          Promise.prototype.then = Promise.prototype.then;
          console.log("left");
          return seen;
        };"#;
    std::fs::write(&file, source).unwrap();
    node.ok(&["deploy", file.to_str().unwrap()]);
    let first = ask(&node, "globals", "{}");
    assert!(first.starts_with("[\"as deployed\",[[\"a\",1]],null,1,"), "{first}");
    for _ in 0..20 {
        assert_eq!(ask(&node, "globals", "{}"), first);
    }
}

#[test]
fn chance_of_an_invocation_says_nothing_of_the_next() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let file = home.path().join("chance.js");
    let source = "const atDeploy = Math.random();
        export default () => [Math.random(), Math.random(), crypto.randomUUID(), ...crypto.getRandomValues(new Uint32Array(2)),
          atDeploy, new Date(0).getTime()];";
    std::fs::write(&file, source).unwrap();
    node.ok(&["deploy", file.to_str().unwrap()]);
    node.ok(&["deploy", component("reach").to_str().unwrap()]);
    let (mut seen, mut deployed) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..100 {
        let answer: Vec<serde_json::Value> = serde_json::from_str(&ask(&node, "chance", "")).unwrap();
        for value in &answer[..5] {
            assert!(seen.insert(value.to_string()), "{value} came twice");
        }
        deployed.insert(answer[5].to_string());
        assert!(seen.insert(ask(&node, "reach", "random")), "a hash state came twice");
    }
    assert_eq!(deployed.len(), 1, "what was there at the deploy stays");
}

#[test]
fn the_data_of_another_function_are_not_to_be_had() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let app = |name: &str, manifest: &str, source: &str| {
        let folder = home.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let head = format!("app = \"{name}\"\nassets = [\"*.txt\"]\n[functions.{name}]\nmain = \"f.js\"\n");
        std::fs::write(folder.join("edgefaas.toml"), head + manifest).unwrap();
        std::fs::write(folder.join("f.js"), source).unwrap();
        std::fs::write(folder.join(format!("{name}.txt")), format!("asset of {name}")).unwrap();
        node.ok(&["deploy", folder.to_str().unwrap()]);
    };
    node.tell(&["secrets", "set", "key", "--app", "owner"], "open sesame");
    app(
        "owner",
        "permissions = { objects = [\"safe\"] }\nsecrets = [\"key\"]\n[functions.owner.config]\nplace = \"cellar\"\n",
        "export default async (event, context) => {
            await context.object('safe').register('gold').set('bars');
            return [context.secrets.key, context.config.place, new TextDecoder().decode(context.asset('owner.txt'))];
        };",
    );
    app(
        "thief",
        "",
        "export default async (event, context) => {
            const tried = async (what) => { try { return await what(); } catch (error) { return error.code ?? error.name; } };
            return [
              context.secrets.key ?? 'none', context.config.place ?? 'none',
              await tried(() => context.object('safe').register('gold').get()),
              await tried(() => context.object('safe').register('gold').set('lead')),
              await tried(() => context.call('owner')),
              await tried(() => context.publish('owner', 'x')),
              await tried(() => context.asset('owner.txt')), await tried(() => context.asset('../owner/owner.txt')),
            ];
        };",
    );
    assert_eq!(ask(&node, "owner", ""), r#"["open sesame","cellar","asset of owner"]"#);
    let refused = r#"["none","none","NotPermitted","NotPermitted","NotPermitted","NotPermitted","NotFound","NotFound"]"#;
    assert_eq!(ask(&node, "thief", ""), refused);
}

#[test]
fn what_a_deploy_left_stays_whatever_becomes_of_others() {
    let home = tempfile::tempdir().unwrap();
    let mut node = node(home.path());
    let source = "const id = Math.random(); export default () => id;";
    let deploy = |node: &Running, name: &str, more: &str| {
        let folder = home.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let manifest = format!("app = \"{name}\"\n[functions.{name}]\nmain = \"f.js\"\n{more}");
        std::fs::write(folder.join("edgefaas.toml"), manifest).unwrap();
        std::fs::write(folder.join("f.js"), source).unwrap();
        std::fs::write(folder.join("broken.js"), "throw new Error('at deploy');").unwrap();
        node.cli(&["deploy", folder.to_str().unwrap()]).status.success()
    };
    // Of the same text.
    assert!(deploy(&node, "one", "") && deploy(&node, "two", ""));
    let ids = |node: &Running| (ask(node, "one", ""), ask(node, "two", ""));
    let before = ids(&node);
    assert_ne!(before.0, before.1);
    assert!(!deploy(&node, "one", "[functions.zero]\nmain = \"broken.js\"\n"));
    for _ in 0..3 {
        assert_eq!(ids(&node), before);
        node.kill();
        let config = home.path().join("node.toml");
        node = Running::start(&home.path().join("data"), &["--config", config.to_str().unwrap()]);
    }
    assert_eq!(ids(&node), before);
}
