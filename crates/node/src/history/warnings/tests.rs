//! Tests of warnings: when each one comes, and what it says.

use std::time::Instant;

use super::super::failures::Counted;
use super::*;

/// A node without problems.
fn well() -> Facts {
    Facts {
        now_unix_ms: 1_800_000_000_000,
        uptime: Duration::from_secs(3600),
        space: SpaceReading { free_bytes: 1 << 30, needed_bytes: 64 << 20, ..Default::default() },
        memory: Some(MemoryLevel { limit_bytes: 1 << 30, available_bytes: 1 << 29 }),
        temperature_millicelsius: Some(55_000),
        ..Facts::default()
    }
}

fn function(counts: Counts) -> FunctionFacts {
    let (app, name) = ("shop".into(), "pay".into());
    FunctionFacts { app, name, error: None, counts, full_queue: None }
}

fn counts(invocations: u64, failures: u64) -> Counts {
    Counts { invocations, failures }
}

fn of(change: impl FnOnce(&mut Facts)) -> Vec<Warning> {
    let mut facts = well();
    change(&mut facts);
    warnings(&facts, &RecentFailures::default())
}

/// The only warning has this code and severity, these words in its text and these in its remedy.
fn is_one(warnings: &[Warning], code: Code, severity: Severity, text: &[&str], remedy: &str) {
    let [warning] = warnings else { panic!("one warning: {warnings:?}") };
    assert_eq!((warning.code, warning.severity), (code, severity));
    assert!(text.iter().all(|words| warning.text.contains(words)), "{}", warning.text);
    assert!(warning.remedy.contains(remedy), "{}", warning.remedy);
}

fn workflow(counts: Counts) -> WorkflowFacts {
    WorkflowFacts { app: "shop".into(), name: "dry".into(), counts }
}

use Severity::{Caution, Failing};

#[test]
fn a_node_without_problems_has_no_warnings() {
    assert_eq!(of(|_| {}), []);
    // Nothing is known.
    let facts = Facts { now_unix_ms: CLOCK_IS_SET_MS, ..Facts::default() };
    assert_eq!(warnings(&facts, &RecentFailures::default()), []);
}

#[test]
fn a_disk_is_full_or_nearly_full() {
    let full = of(|facts| facts.space = SpaceReading { is_full: true, free_bytes: 1, ..facts.space });
    is_one(&full, Code::DiskFull, Failing, &["1 B free", "64.0 MiB needed"], "objects delete");
    let low = of(|facts| facts.space.free_bytes = 70 << 20);
    is_one(&low, Code::DiskLow, Caution, &["70.0 MiB free", "below 64.0 MiB"], "store.reserve");
    assert_eq!(of(|facts| facts.space.free_bytes = 71 << 20), []);
}

#[test]
fn memory_is_short_below_a_twentieth_or_while_invocations_wait_for_it() {
    let level = |available_bytes| Some(MemoryLevel { limit_bytes: 1000 << 20, available_bytes });
    let short = of(|facts| facts.memory = level(49 << 20));
    is_one(&short, Code::MemoryShort, Caution, &["49.0 MiB of 1000.0 MiB left"], "MemoryMax=");
    assert_eq!(of(|facts| facts.memory = level(50 << 20)), []);
    let withheld = GuestMemoryReading { withheld_bytes: 1 << 20, ..Default::default() };
    assert_eq!(of(|facts| facts.guests = withheld), [], "other programs have some of it");
    let withheld = of(|facts| {
        facts.guests = GuestMemoryReading { withheld_bytes: 1 << 20, waiting: 3, ..Default::default() };
    });
    is_one(
        &withheld,
        Code::MemoryShort,
        Failing,
        &["1.0 MiB are withheld", "3 invocations wait"],
        "limits.memory",
    );
}

#[test]
fn a_hot_board_and_a_clock_that_was_never_set_are_named() {
    let hot = of(|facts| facts.temperature_millicelsius = Some(82_460));
    is_one(&hot, Code::BoardHot, Caution, &["82.5 °C", "80 °C"], "heat sink");
    assert_eq!(of(|facts| facts.temperature_millicelsius = Some(79_999)), []);
    let unset = of(|facts| facts.now_unix_ms = 61_000);
    is_one(&unset, Code::ClockNotSet, Failing, &["1970-01-01T00:01:01Z"], "timedatectl set-ntp true");
}

#[test]
fn a_function_that_cannot_run_fails_or_has_a_full_queue_is_named() {
    let broken = of(|facts| {
        facts.functions = vec![FunctionFacts { error: Some("no memory".into()), ..function(counts(0, 0)) }];
    });
    is_one(
        &broken,
        Code::FunctionBroken,
        Failing,
        &["`pay` cannot run: no memory"],
        "edgefaas rollback shop",
    );
    assert_eq!(broken[0].subject, "pay");
    let full = of(|facts| {
        facts.functions = vec![FunctionFacts { full_queue: Some(1000), ..function(counts(0, 0)) }];
    });
    is_one(
        &full,
        Code::QueueFull,
        Failing,
        &["`pay` is full", "1000 invocations wait"],
        "limits.queue.capacity",
    );

    let failing = |counts| of(|facts| facts.functions = vec![function(counts)]);
    let some = failing(counts(5, 3));
    is_one(
        &some,
        Code::FunctionFailing,
        Failing,
        &["3 of 5 invocations of function `pay` failed"],
        "edgefaas logs pay",
    );
    assert_eq!(failing(counts(4, 4)), [], "too few");
    assert_eq!(failing(counts(6, 3)), [], "not more than half");
    // Failures of earlier times do not count.
    let mut recent = RecentFailures::default();
    let begun = Instant::now();
    for minute in 0..12 {
        let seen =
            Counted { name: "pay".into(), counts: counts(100, 100), min_invocations: MIN_INVOCATIONS };
        recent.see(begun + Duration::from_secs(60 * minute), [seen]);
    }
    let mut facts = well();
    facts.functions = vec![function(counts(110, 105))];
    assert_eq!(warnings(&facts, &recent), [], "not more than half");
    facts.functions = vec![function(counts(110, 106))];
    assert!(warnings(&facts, &recent)[0].text.contains("6 of 10"));
}

#[test]
fn secrets_that_are_not_set_come_with_their_commands() {
    let unset = |secrets: &[&str]| {
        let secrets = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        of(|facts| {
            facts.unset_secrets = vec![UnsetSecrets { app: "shop".into(), user: "pay".into(), secrets }]
        })
    };
    is_one(
        &unset(&["key"]),
        Code::SecretMissing,
        Caution,
        &["secret `key`, which is not set"],
        "edgefaas secrets set --app shop key",
    );
    is_one(
        &unset(&["key", "id"]),
        Code::SecretMissing,
        Caution,
        &["secrets `key`, `id`, which are not set"],
        "set --app shop id",
    );
}

#[test]
fn a_bridge_without_a_connection_comes_with_its_error() {
    let bridge =
        BridgeStatus { name: "cloud".into(), url: "mqtt://hub".into(), queued: 7, ..Default::default() };
    assert_eq!(of(|facts| facts.bridges = vec![bridge.clone()]), [], "it connects for the first time");
    let failed = BridgeStatus { last_error: Some("refused".into()), ..bridge };
    let away = of(|facts| facts.bridges = vec![failed.clone()]);
    is_one(
        &away,
        Code::BridgeAway,
        Failing,
        &["`cloud`", "mqtt://hub: refused; 7 messages wait"],
        "[[bridges]]",
    );
    let connected = BridgeStatus { connected_since_unix_ms: Some(1), ..failed };
    assert_eq!(of(|facts| facts.bridges = vec![connected]), []);
}

#[test]
fn members_that_are_away_and_identities_of_two_nodes_are_named() {
    let member = MemberFacts {
        name: "hall".into(),
        away: Some(Duration::from_millis(3_720_500)),
        ..Default::default()
    };
    let away = of(|facts| facts.members = vec![member.clone()]);
    is_one(&away, Code::MemberAway, Caution, &["`hall`", "for 1h 2m"], "edgefaas cluster revoke hall");
    let young = of(|facts| {
        facts.members = vec![member.clone()];
        facts.uptime = Duration::from_secs(29);
    });
    assert_eq!(young, [], "members connect after the start");
    let never = of(|facts| facts.members = vec![MemberFacts { away: None, ..member.clone() }]);
    is_one(&never, Code::MemberAway, Caution, &["since the start of this node"], "edgefaas nodes hall");
    let copy = MemberFacts { is_connected: true, copy_address: Some("10.0.0.9".into()), ..member };
    is_one(
        &of(|facts| facts.members = vec![copy]),
        Code::MemberCopy,
        Caution,
        &["`hall` is refused: 10.0.0.9"],
        "empty data directory",
    );
    let own = of(|facts| facts.own_copy = Some("seen at 10.0.0.9".into()));
    is_one(&own, Code::IdentityCopy, Failing, &["seen at 10.0.0.9"], "empty data directory");
    let revoked = of(|facts| facts.revoked = Some("c1".into()));
    is_one(&revoked, Code::Revoked, Failing, &["the cluster c1"], "edgefaas cluster join TOKEN");
}

#[test]
fn an_open_listener_and_a_stop_are_named() {
    let open = of(|facts| facts.plain_mqtt = Some("0.0.0.0:1883".parse().unwrap()));
    is_one(&open, Code::MqttPlain, Caution, &["0.0.0.0:1883"], "`mqtts`");
    is_one(&of(|facts| facts.is_draining = true), Code::Draining, Failing, &["stops"], "edgefaas run");
}

#[test]
fn the_worst_warnings_come_first_and_their_number_is_bounded() {
    let found = of(|facts| {
        facts.temperature_millicelsius = Some(90_000);
        facts.space.is_full = true;
        facts.functions = (0..200)
            .map(|number| FunctionFacts { name: format!("f{number:03}").into(), ..function(counts(9, 9)) })
            .collect();
    });
    assert_eq!(found.len(), MAX_WARNINGS);
    assert_eq!(
        (found[0].code, found[1].subject.as_str(), found[99].subject.as_str()),
        (Code::DiskFull, "f000", "f098")
    );
}

#[test]
fn the_documentation_lists_each_code() {
    let page = include_str!("../../../../../docs/operations.md");
    for code in Code::ALL {
        assert!(page.contains(&format!("| `{code}` |")), "docs/operations.md does not have `{code}`");
    }
}

#[test]
fn a_workflow_fails_when_most_instances_do() {
    let of_workflow = |counts| of(|facts| facts.workflows = vec![workflow(counts)]);
    let one = of_workflow(counts(1, 1));
    is_one(
        &one,
        Code::WorkflowFailing,
        Failing,
        &["1 of 1 instance of workflow `dry`"],
        "edgefaas logs dry",
    );
    assert_eq!(of_workflow(counts(2, 1)), []);
    assert_eq!(of_workflow(counts(0, 0)), []);
}
