//! Functions with `recover = "before"` while a member that has their objects is away in the middle of its round.

use edgefaas_testnet::{Conditions, Topology, isolated};
use serde_json::json;

use crate::choosing::{COUNT, FILL};
use crate::hosted::{HostedNode, write_app};

const COUNTS: usize = 200;
const MANIFEST: &str = r#"
    app = "data"
    [functions.fill]
    main = "fill.js"
    permissions = { objects = ["o-*"] }
    [functions.count]
    main = "count.js"
    permissions = { objects = ["o-*"] }
    limits = { timeout = "120s" }
    [functions.short]
    main = "count.js"
    permissions = { objects = ["o-*"] }
    limits = { timeout = "2s" }
    [objects."*"]
    recover = "before"
"#;

/// Objects on `a` of 10 MB, and `b` to which they come slowly.
#[test]
fn a_function_waits_while_the_member_that_has_its_objects_is_away() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["a", "b", "c"]).build().unwrap();
        network.link("b").set(Conditions::default().with_rate(500_000));
        let home = tempfile::tempdir().unwrap();
        let a = HostedNode::start(network.host("a"), home.path(), &[]);
        a.ok(&["cluster", "init", "--name", "a"]);
        let files = [("edgefaas.toml", MANIFEST), ("fill.js", FILL), ("count.js", COUNT)];
        let folder = write_app(home.path(), "app", &files);
        a.ok(&["deploy", "--this-node", &folder]);
        for at in (0..COUNTS).step_by(10) {
            assert!(a.exchange("POST", "/fn/fill", &at.to_string()).0.starts_with("HTTP/1.1 200"));
        }
        let join = |name: &str| {
            let node = HostedNode::start(network.host(name), home.path(), &[]);
            let token = a.ok(&["cluster", "token"]);
            node.ok(&["cluster", "join", token.trim(), "--name", name]);
            node
        };
        let c = join("c");
        c.ok(&["deploy", "--this-node", &folder]);
        c.wait(&["nodes"], |nodes| nodes["recovering"] == 0);
        let c_has = c.exchange("POST", "/fn/count", "").1;
        assert_eq!(c_has, r#"{"count":200}"#);
        // The third one is cut off as well: only `a` can bring the objects.
        network.link("c").cut();
        let b = join("b");
        b.ok(&["deploy", "--this-node", &folder]);
        // A part of them comes.
        b.wait(&["objects", "list", "data"], |list| {
            list["objects"].as_array().is_some_and(|all| all.len() > 20)
        });
        network.link("a").cut();
        b.wait(&["nodes"], |nodes| {
            let members = nodes["members"].as_array().expect("members");
            members.iter().all(|member| member["peer"].is_null())
        });
        // It neither reads what is not there, nor says that all is.
        let (head, body) = b.exchange("POST", "/fn/short", "");
        assert!(head.starts_with("HTTP/1.1 504"), "{head} {body}");
        assert!(body.contains("have not come from other nodes"), "{body}");
        let nodes = b.json(&["nodes"]);
        let patterns = nodes["recovering_patterns"].as_array().expect("patterns");
        let own = patterns.iter().find(|pattern| pattern["pattern"] == "o-*").expect("the pattern");
        assert_eq!(own["members"], json!(["a"]), "{nodes}");
        assert_eq!(b.json(&["status"])["recovering_from"], json!(["a"]));
        let metric = r#"edgefaas_cluster_recovering{app="data",pattern="o-*",member="a"}"#;
        assert_eq!(b.metric(metric), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.exchange("POST", "/fn/count", ""));
            network.link("b").set(Conditions::default());
            network.link("a").restore();
            let (head, body) = waiting.join().expect("no panic");
            assert_eq!((body.as_str(), head.contains(" 200 ")), (r#"{"count":200}"#, true), "{head}");
        });
        b.wait(&["nodes"], |nodes| nodes["recovering"] == 0);
    });
}
