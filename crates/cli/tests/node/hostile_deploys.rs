//! Deploys of somebody who wants the node to crash, over the control API: the CLI would refuse most of them before.

use edgefaas_api::control::control_client::ControlClient;
use edgefaas_api::control::{self as proto, artifact::Source};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use crate::support::Running;

/// A node, and the control API of it without the CLI.
struct Bench {
    node: Running,
    runtime: tokio::runtime::Runtime,
    token: String,
}

impl Bench {
    /// A node with a function that has to go on working.
    fn new(home: &std::path::Path) -> Self {
        let data = home.join("data");
        let node = Running::start(&data, &[]);
        let token = std::fs::read_to_string(data.join("token")).unwrap().trim().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bench = Self { node, runtime, token };
        bench.deploy("good", script("good.js", "export default () => 'well'")).unwrap();
        bench
    }

    /// Deploys a function as an app of its own.
    fn deploy(&self, name: &str, source: Source) -> Result<(), Status> {
        let extension = if matches!(source, Source::Component(_)) { "wasm" } else { "js" };
        let artifact = proto::Artifact { function: name.to_owned(), source: Some(source) };
        self.send(proto::DeployRequest {
            manifest: format!("app = \"{name}\"\n[functions.{name}]\nmain = \"{name}.{extension}\"\n"),
            artifacts: vec![artifact],
            ..Default::default()
        })
    }

    fn send(&self, request: proto::DeployRequest) -> Result<(), Status> {
        let mut request = Request::new(request);
        let bearer = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        self.runtime.block_on(async {
            let endpoint =
                Endpoint::from_shared(format!("http://{}", address(&self.node.control))).unwrap();
            let client = ControlClient::new(endpoint.connect().await.expect("the control port is open"));
            let mut client = client.max_encoding_message_size(64 << 20);
            client.deploy(request).await.map(drop)
        })
    }

    /// What the node says to a deploy that it refuses. Then it still answers.
    fn refused(&self, what: &str, source: Source) -> String {
        self.still_well(what, self.deploy("hostile", source))
    }

    fn still_well(&self, what: &str, result: Result<(), Status>) -> String {
        let status = result.expect_err(what);
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
        assert_eq!(self.node.http("GET", "/fn/good", ""), (200, "well".into()), "after {what}");
        status.message().to_owned()
    }
}

fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}

/// A function of one module.
fn script(path: &str, source: &str) -> Source {
    modules(&[(path, source)])
}

/// A function of modules, the first of which imports all.
fn modules(modules: &[(&str, &str)]) -> Source {
    let imports = modules[1..].iter().map(|(path, _)| (format!("./{path}"), (*path).to_owned())).collect();
    let mut modules: Vec<_> = modules
        .iter()
        .map(|(path, source)| proto::Module {
            path: (*path).to_owned(),
            source: (*source).to_owned(),
            imports: Default::default(),
        })
        .collect();
    modules[0].imports = imports;
    Source::Modules(proto::ModuleGraph { entry: modules[0].path.clone(), modules })
}

#[test]
fn javascript_that_nests_too_deeply_is_refused_with_its_file() {
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(home.path());
    let deep = |open: &str, close: &str| {
        format!("export default ()=>1; const y = {}1{};", open.repeat(400_000), close.repeat(400_000))
    };
    let reported =
        format!("const x = {{}}/{}1{}/1; export default ()=>1", "(".repeat(400_000), ")".repeat(400_000));
    for (what, source) in [
        ("of issue 16", reported),
        ("brackets", deep("[", "]")),
        ("templates", deep("`${", "}`")),
        ("functions", deep("a=>(", ")")),
    ] {
        for path in ["hostile.js", "hostile.ts"] {
            let said = bench.refused(what, script(path, &source));
            let wanted = format!("{path}: the code is nested too deeply");
            assert!(said.contains(&wanted), "{what}: {said}");
        }
    }
    // The parser may have room for these, or not.
    for (what, source) in [
        ("a chain", deep("1-", "")),
        ("negations", deep("!", "")),
        ("branches", format!("export default ()=>1; {} 1", "if(1)".repeat(400_000))),
        ("else branches", format!("export default ()=>1; {} 1", "if(1);else ".repeat(400_000))),
    ] {
        match bench.deploy("hostile", script("hostile.ts", &source)) {
            Ok(()) => {
                assert_eq!(bench.node.http("GET", "/fn/good", ""), (200, "well".into()), "after {what}")
            }
            refused => drop(bench.still_well(what, refused)),
        }
    }
    // The file that is to blame is named, not the one that imports it.
    let graph = modules(&[
        ("hostile.js", "import './lib/deep.ts'; export default ()=>1"),
        ("lib/fine.ts", "export const x: number = 1;"),
        ("lib/deep.ts", &deep("(", ")")),
    ]);
    let said = bench.refused("a module", graph);
    assert!(said.contains("lib/deep.ts: the code is nested too deeply"), "{said}");

    // What is deep or long within reason works.
    let links = format!("const a = {}1; export default ()=>String(a)", "1-".repeat(2000));
    bench.deploy("chain", script("chain.ts", &links)).unwrap();
    assert_eq!(bench.node.http("GET", "/fn/chain", ""), (200, "-1999".into()));
    let nested = format!("const a = {}1{}; export default ()=>'n'", "[".repeat(50), "]".repeat(50));
    bench.deploy("nested", script("nested.js", &nested)).unwrap();
    assert_eq!(bench.node.http("GET", "/fn/nested", ""), (200, "n".into()));
}

#[test]
fn other_javascript_that_would_use_up_the_node_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(home.path());
    let array = |inner: &str| format!("export default ()=>1; {inner}");
    for (what, source, wanted) in [
        (
            "memory",
            array("const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1))"),
            "bytes of memory",
        ),
        ("recursion", array("const f = () => 1 + f(); f()"), "overflowed its stack"),
        (
            "a regular expression",
            array(&format!("/{}a{}/", "(?:".repeat(100_000), ")".repeat(100_000))),
            "hostile",
        ),
    ] {
        let said = bench.refused(what, script("hostile.js", &source));
        assert!(said.contains(wanted), "{what}: {said}");
    }
    let json = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    let graph =
        modules(&[("hostile.js", "import d from './d.json'; export default ()=>d"), ("d.json", &json)]);
    bench.refused("JSON", graph);
}

#[test]
fn of_many_functions_the_hostile_one_is_named() {
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(home.path());
    // Functions are evaluated in the order of their names, many in one process.
    let deploy = |hostile: &[(&str, &str)]| {
        let mut sources: Vec<(String, String)> = (0..20)
            .map(|number| (format!("f{number:02}"), format!("export default () => {number}")))
            .collect();
        for (name, source) in hostile {
            sources.push(((*name).to_owned(), (*source).to_owned()));
        }
        sources.sort();
        let mut manifest = "app = \"many\"\n".to_owned();
        let mut artifacts = Vec::new();
        for (name, source) in &sources {
            manifest += &format!("[functions.{name}]\nmain = \"{name}.js\"\n");
            let source = Some(script(&format!("{name}.js"), source));
            artifacts.push(proto::Artifact { function: name.clone(), source });
        }
        bench.send(proto::DeployRequest { manifest, artifacts, ..Default::default() })
    };
    let deep = format!("export default ()=>1; const y = {}1{};", "(".repeat(400_000), ")".repeat(400_000));
    let throws = "throw new Error('on purpose')";
    let memory = "export default ()=>1; const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1))";
    for (what, hostile, wanted) in [
        ("a crash", vec![("f10a", &*deep)], vec!["f10a.js", "nested too deeply"]),
        ("an error", vec![("f10a", throws)], vec!["f10a", "on purpose"]),
        ("an error before a crash", vec![("f03a", throws), ("f10a", &deep)], vec!["f03a", "on purpose"]),
        ("a crash before an error", vec![("f03a", &deep), ("f10a", throws)], vec!["f03a.js", "nested"]),
        ("memory", vec![("f19a", memory)], vec!["f19a", "bytes of memory"]),
        ("a loop", vec![("f05a", "export default ()=>1; for (;;) {}")], vec!["f05a", "processor time"]),
    ] {
        let said = bench.still_well(what, deploy(&hostile));
        assert!(wanted.iter().all(|wanted| said.contains(wanted)), "{what}: {said}");
    }
    deploy(&[]).unwrap();
    for number in 0..20 {
        let answer = bench.node.http("GET", &format!("/fn/f{number:02}"), "");
        assert_eq!(answer, (200, number.to_string()));
    }
}

#[test]
fn workflows_and_manifests_that_would_use_up_the_node_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(home.path());
    let workflow = |text: &str| {
        bench.send(proto::DeployRequest {
            manifest: "app = \"w\"\n[workflows]\nfiles = [\"w.yaml\"]\n".to_owned(),
            workflows: vec![proto::WorkflowFile { file: "w.yaml".to_owned(), text: text.to_owned() }],
            ..Default::default()
        })
    };
    let task = |task: &str| {
        format!(
            "document: {{dsl: '1.0.0', namespace: test, name: w, version: '1.0.0'}}\ndo:\n  - a: {{set: {{}}, {task}}}\n"
        )
    };
    workflow(&task("if: .a")).unwrap();
    let laughs = (1..30).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}, *a{0}]\n", n - 1)).collect::<String>();
    let patterns = "{pattern: '\\w{50}'}, ".repeat(20_000);
    for (what, text) in [
        ("lists", "[".repeat(900_000)),
        ("mappings", "{a: ".repeat(200_000)),
        ("blocks", "- ".repeat(400_000)),
        ("keys", "? ".repeat(400_000)),
        ("aliases", format!("a0: &a0 [x]\n{laughs}")),
        ("brackets of jq", task(&format!("if: '{}1{}'", "(".repeat(30_000), ")".repeat(30_000)))),
        ("signs of jq", task(&format!("if: '{}1'", "-".repeat(30_000)))),
        ("branches of jq", task(&format!("if: '{}1{}'", "if 1 then ".repeat(3_000), " end".repeat(3_000)))),
        (
            "schemas",
            task(&format!(
                "input: {{schema: {{document: {}true{}}}}}",
                "{not: ".repeat(5_000),
                "}".repeat(5_000)
            )),
        ),
    ] {
        bench.still_well(what, workflow(&text));
    }
    // Each is small enough for its library.
    let bomb = task(&format!("input: {{schema: {{document: {{anyOf: [{patterns}]}}}}}}"));
    let said = bench.still_well("regular expressions", workflow(&bomb));
    assert!(said.contains("w.yaml: the workflow takes more memory to compile than"), "{said}");

    let manifest = |text: String| bench.send(proto::DeployRequest { manifest: text, ..Default::default() });
    for (what, text) in [
        ("arrays", format!("app = {}", "[".repeat(500_000))),
        ("tables", format!("app = {}", "{a=".repeat(300_000))),
        ("names", format!("{}a = 1", "a.".repeat(500_000))),
        ("headers", "[a.a.a.a.a.a.a.a]\n".repeat(50_000)),
        ("mistakes in one line", format!("app = [{}]", "?,".repeat(500_000))),
        ("a long text", format!("app = \"{}\"", "a".repeat(60 << 20))),
    ] {
        bench.still_well(what, manifest(text));
    }
}

#[test]
fn webassembly_that_would_use_up_the_node_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(home.path());
    for (what, wasm) in [
        ("nested components", nested_components(20_000)),
        ("nested types", component(&[section(7, &nested_types(100_000))])),
        ("nested blocks", component(&[section(1, &module_of(&nested_blocks(1_000_000)))])),
        ("locals", component(&[section(1, &module_of(&many_locals()))])),
        (
            "a section that is longer than the file",
            [COMPONENT, &[1, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat(),
        ),
        ("no component", COMPONENT[..4].to_vec()),
    ] {
        let said = bench.refused(what, Source::Component(wasm));
        assert!(said.contains("hostile"), "{what}: {said}");
    }
}

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
const MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// An unsigned number in LEB128 (WebAssembly core specification, 5.2.2).
fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// An index where a signed number is wanted: the sixth bit of the last byte is its sign.
fn index(value: usize) -> Vec<u8> {
    let mut bytes = number(value);
    if let Some(last) = bytes.last_mut().filter(|last| **last & 0x40 != 0) {
        *last |= 0x80;
        bytes.push(0);
    }
    bytes
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id], number(content.len()).as_slice(), content].concat()
}

fn component(sections: &[Vec<u8>]) -> Vec<u8> {
    [COMPONENT, &sections.concat()].concat()
}

/// A component in a component in a component.
fn nested_components(levels: usize) -> Vec<u8> {
    // From the inside: the header of each level needs the size of all within.
    let mut heads: Vec<Vec<u8>> = vec![COMPONENT.to_vec()];
    let mut bytes = COMPONENT.len();
    for _ in 0..levels {
        let head = [COMPONENT, &[4], &number(bytes)].concat();
        bytes += head.len();
        heads.push(head);
    }
    heads.into_iter().rev().flatten().collect()
}

/// Types, each a list of the one before.
fn nested_types(levels: usize) -> Vec<u8> {
    let mut types = number(levels + 1);
    // option<bool>, then list<previous> (component model, Binary.md).
    types.extend([0x6b, 0x7f]);
    for level in 0..levels {
        types.push(0x70);
        types.extend(index(level));
    }
    types
}

/// A module with one function of this body.
fn module_of(body: &[u8]) -> Vec<u8> {
    let code = [&[1], number(body.len()).as_slice(), body].concat();
    let sections = [section(1, &[1, 0x60, 0, 0]), section(3, &[1, 0]), section(10, &code)];
    [MODULE, &sections.concat()].concat()
}

fn nested_blocks(levels: usize) -> Vec<u8> {
    let mut body = vec![0];
    body.extend([0x02, 0x40].repeat(levels));
    body.extend([0x0b].repeat(levels + 1));
    body
}

/// 2^32 - 1 locals in a few bytes.
fn many_locals() -> Vec<u8> {
    [&[1], number(u32::MAX as usize).as_slice(), &[0x7f, 0x0b]].concat()
}
