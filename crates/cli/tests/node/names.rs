//! Where names may lead a function: a machine with a hosts file and addresses of its own.

use std::process::Command;

use crate::support::skipped;

const HOSTS: &str =
    "127.0.0.1 localhost\n10.99.0.1 plc.test\n198.51.100.7 own.test\n169.254.169.254 metadata.test\n";

const SOURCE: &str = "export default async (event) => {
    try { return (await fetch(event.text())).status; } catch (error) { return error.cause?.message ?? error.message; }
};";

/// In namespaces of its own. Nothing listens at any of the addresses: a connection that is tried is refused.
const SCRIPT: &str = r#"
set -e
mount --bind "$HOME/hosts" /etc/hosts
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
ip addr add 198.51.100.7/32 dev lo
edgefaas() { "$EDGEFAAS" "$@"; }
"$EDGEFAAS" run --http 127.0.0.1:8080 --mqtt 127.0.0.1:1883 --control 127.0.0.1:7070 >"$HOME/log" 2>&1 &
until edgefaas status >/dev/null 2>&1; do kill -0 $! || { cat "$HOME/log"; exit 1; }; sleep 0.05; done
cd "$HOME"
edgefaas deploy any.js --allow 'http=*:*' >/dev/null
edgefaas deploy named.js --allow http=plc.test --allow http=own.test --allow http=metadata.test >/dev/null
edgefaas deploy network.js --allow 'http=*:*' --allow http=10.99.0.0/16 >/dev/null
for name in plc own metadata; do
    for function in any named network; do
        echo "$function $name: $(curl -s --data http://$name.test/ http://127.0.0.1:8080/fn/$function)"
    done
done
kill $!
"#;

#[test]
fn a_name_leads_to_private_addresses_only_if_it_or_they_are_named() {
    let namespaces = ["--mount", "--net", "--fork", "--kill-child"];
    let may = Command::new("unshare").args(namespaces).args(["ip", "link", "set", "lo", "up"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skipped("the right to make namespaces (unshare, ip)");
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("hosts"), HOSTS).unwrap();
    for function in ["any", "named", "network"] {
        std::fs::write(home.path().join(format!("{function}.js")), SOURCE).unwrap();
    }
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", SCRIPT])
        .env("HOME", home.path())
        .env_remove("EDGEFAAS_NODE")
        .env_remove("EDGEFAAS_TOKEN")
        .env("EDGEFAAS_DATA_DIR", home.path().join("data"))
        .env("EDGEFAAS", env!("CARGO_BIN_EXE_edgefaas"))
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    let answer = |of: &str| {
        said.lines().find_map(|line| line.strip_prefix(of)).unwrap_or_else(|| panic!("{said}{errors}"))
    };
    for (of, expected) in [
        ("any plc: ", "must be named: add `plc.test` or `10.99.0.1` to permissions.http"),
        ("named plc: ", "Connection refused"),
        ("network plc: ", "Connection refused"),
        ("any own: ", "198.51.100.7 is an address of this machine"),
        ("named own: ", "Connection refused"),
        ("network own: ", "198.51.100.7 is an address of this machine"),
        ("any metadata: ", "add `169.254.169.254` to permissions.http"),
        ("named metadata: ", "add `169.254.169.254` to permissions.http"),
        ("network metadata: ", "add `169.254.169.254` to permissions.http"),
    ] {
        assert!(answer(of).contains(expected), "{of}{}", answer(of));
    }
}
